"""One file of a composed recipe, and where its keys go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mounted:
    """Files come in the order of merging."""

    config_path: str
    package: str = ""
    """Where its keys go, dotted; empty for the top."""
    parent: str | None = None
    """The file that includes it."""
