"""Diagnostics: what is wrong with a recipe, as data.

A `Diagnostic` describes one root cause: a stable code, a message, the smallest wrong piece of text, the
pieces that it contradicts, and what would work. Rules yield diagnostics and never raise on a user's input. A
`Report` holds the diagnostics of one pass. `view/reports` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class Span:
    """A piece of one line of a recipe, of a config group's file, or of an override on the command line."""

    file: str
    """The name by which the user knows it; an override is a file of one line named `override 2`."""
    line: int
    """Line number, from 1."""
    column: int
    """Column in characters, from 1."""
    width: int = 1
    """Width in characters of that line."""
    label: str = ""
    """The note beside the mark, such as "`train` has 8 ranks"."""

    def with_word(self, label: str) -> Span:
        return Span(self.file, self.line, self.column, self.width, label)


@dataclass(frozen=True)
class Fix:
    """An edit of the text that is safe because only one answer is possible."""

    span: Span
    was: str
    """The present text without its quotes. Where the file has something else there (an interpolation, an
    anchor), nothing is changed."""
    text: str
    """The new text. If it equals `was`, only the quotes are removed."""


@dataclass(frozen=True)
class Diagnostic:
    code: str
    """A stable code such as MC410; its first digit is the subject. A code never changes its meaning."""
    message: str
    primary: Span | None = None
    """The text to change; None where no text is wrong (a missing file)."""
    seconds: tuple[Span, ...] = ()
    """The texts that the primary contradicts."""
    help: str = ""
    severity: Literal["error", "warning", "note"] = "error"
    fixes: tuple[Fix, ...] = ()
    """The edits that together correct it, where exactly one answer is safe (`recipe/fixes.py` makes them)."""
    missing: bool = False
    """Whether something does not exist that a file might define which could not be included. Such a
    diagnostic is not reported where a file is missing."""


class RecipeError(Exception):
    """Carries a report with errors to the command, which draws it and chooses the exit code."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in report.diagnostics))
        self.report = report


@dataclass(frozen=True)
class Report:
    """The diagnostics of one pass over a recipe, with the lines that they name."""

    diagnostics: tuple[Diagnostic, ...] = ()
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(file, its lines) of each file that a span may name, without files that could not be read."""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(found for found in self.diagnostics if found.severity == "error")

    def plus(self, more: Iterable[Diagnostic]) -> Report:
        return Report((*self.diagnostics, *more), self.sources)
