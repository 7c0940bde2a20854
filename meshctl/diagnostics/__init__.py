"""Diagnostics: errors and warnings about a recipe, as data.

A `Diagnostic` describes one root cause: a stable code, a message, the smallest wrong piece of text, the
pieces that it contradicts, and help. Rules yield diagnostics and never raise on a user's input. A `Report`
contains the diagnostics of one pass. A `Check` is a result of examining a machine. `view/reports` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from meshctl.dataclass import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """A piece of one line of a recipe, of a config group's file, or of an override on the command line."""

    file: str
    """The file's path as shown to the user. An override counts as a file of one line, e.g. `override 2`."""
    line: int
    """Line number, from 1."""
    column: int
    """Column in characters, from 1."""
    width: int = 1
    """Width in characters."""
    label: str = ""
    """The note that is printed beside the marked text, such as "`train` has 8 ranks"."""

    def with_word(self, label: str) -> Span:
        return Span(self.file, self.line, self.column, self.width, label)


@dataclass(frozen=True)
class Fix:
    """An edit that corrects the text. It exists only where exactly one correction is safe."""

    span: Span
    was: str
    """The old text without quotes. The fix is dropped if the file has another text there, e.g. an
    interpolation."""
    text: str
    """The new text. If it equals `was`, only the quotes are removed."""


@dataclass(frozen=True)
class Diagnostic:
    code: str
    """A stable code such as MC410; its first digit is the subject. A code never changes its meaning."""
    message: str
    primary: Span | None = None
    """The text to change; None if no text is wrong, e.g. for a missing file."""
    seconds: tuple[Span, ...] = ()
    """The texts that `primary` contradicts."""
    help: str = ""
    severity: Literal["error", "warning", "note"] = "error"
    fixes: tuple[Fix, ...] = ()
    """The edits that together correct the text; empty unless exactly one correction is safe (see
    `recipe/fixes.py`)."""
    missing: bool = False
    """True if the diagnostic is about a missing value. It is dropped if a file could not be included, because
    that file may define the value."""


class RecipeError(Exception):
    """Carries a report with errors to the command, which draws it and chooses the exit code."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in report.diagnostics))
        self.report = report


@dataclass(frozen=True)
class Report:
    """The diagnostics of one pass over a recipe, with the lines to which they refer."""

    diagnostics: tuple[Diagnostic, ...] = ()
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(file, its lines) of each readable file to which spans refer."""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(found for found in self.diagnostics if found.severity == "error")

    def plus(self, more: Iterable[Diagnostic]) -> Report:
        return Report((*self.diagnostics, *more), self.sources)


# The results of examining a machine

State = Literal["ok", "warning", "failure"]
STATES: tuple[State, ...] = ("ok", "warning", "failure")
"""The states, from the best to the worst."""
VERSION = 1
"""The version of the JSON form."""


@dataclass(frozen=True)
class Check:
    subject: str
    """The topic, e.g. `network`."""
    name: str
    """The examined item, unique within its subject, e.g. `loopback`."""
    state: State
    """A failure prevents a run or makes it hang. A warning is about something that slows runs down, or
    prevents some of them."""
    found: str
    remedy: str = ""
    """Advice. Empty if and only if the state is ok."""


def tally(checks: Sequence[Check]) -> dict[State, int]:
    """Returns the number of checks for each state."""
    return {state: sum(check.state == state for check in checks) for state in STATES}


def as_data(checks: Sequence[Check]) -> dict[str, Any]:
    """Returns the checks as plain data for JSON."""
    return {"version": VERSION, "counts": tally(checks), "checks": [asdict(check) for check in checks]}
