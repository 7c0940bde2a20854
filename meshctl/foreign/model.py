"""A configuration of another system as keys with values and places."""

from __future__ import annotations

from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span


class Unreadable(Exception):
    """A file cannot be read. It has the diagnostic."""

    def __init__(self, found: Diagnostic | str, help: str = "") -> None:
        self.diagnostic = Diagnostic("MC001", found, help=help) if isinstance(found, str) else found
        super().__init__(self.diagnostic.message)


@dataclass(frozen=True)
class Given:
    """A key of a file with its value."""

    key: str
    value: Any
    span: Span
    """The place of the value."""
    unknown: str = ""
    """The expansion that is not known, such as `$(nproc)`; empty if it is."""
    command: str = ""
    """The words of its command that are no keys; empty outside of a command line."""
    is_of_script: bool = False
    """True if it stands behind a script that a launcher starts."""


@dataclass(frozen=True)
class Source:
    given: tuple[Given, ...] = ()
    words: tuple[str, ...] = ()
    """The words of command lines that are no keys, such as `trl` and `sft`."""
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(file, its lines), as in reports."""
