"""The engine that a recipe chooses, with its options. `start.json` contains it, and the plan does not, so
that a run can be continued on another engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from meshctl.dataclass import dataclass

LOCAL = "local"


@dataclass(frozen=True)
class EngineChoice:
    name: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the engine, by key; plain data."""
