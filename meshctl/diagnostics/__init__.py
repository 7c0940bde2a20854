"""What is wrong with a recipe, as data.

A `Diagnostic` says one root cause: a stable code, a message, the smallest wrong piece of text, a second piece
that it contradicts, and what would work. Rules yield diagnostics and never raise on what a user wrote; a
`Report` holds all of one pass. How one looks is the business of `view/reports`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class Span:
    """A piece of one line of a recipe, of a config-group file, or of an override on the command line."""

    file: str
    """As the user would name it; an override is a file of one line, called `override 2`."""
    line: int
    """From 1, as editors count."""
    column: int
    """From 1, in characters."""
    width: int = 1
    """In characters of that line."""
    says: str = ""
    """The word beside the mark, e.g. "`train` has 8 ranks"."""

    def with_word(self, says: str) -> Span:
        return Span(self.file, self.line, self.column, self.width, says)


@dataclass(frozen=True)
class Fix:
    """An edit of the text that has one safe answer."""

    span: Span
    was: str
    """What stands there, without its quotes; where something else does (an interpolation, an anchor), nothing
    is changed."""
    text: str
    """What should. The same as before means: without the quotes."""


@dataclass(frozen=True)
class Diagnostic:
    code: str
    """MC410: the first digit is the subject (design, section 5); it never changes its meaning."""
    message: str
    primary: Span | None = None
    """What the user must change; none where no text can be blamed (a missing file)."""
    seconds: tuple[Span, ...] = ()
    """What the primary contradicts."""
    help: str = ""
    severity: Literal["error", "warning", "note"] = "error"
    fixes: tuple[Fix, ...] = ()
    """The edits that make it right, all together, where exactly one answer is safe (`recipe/fixes.py` makes
    them)."""


class RecipeError(Exception):
    """Carries a report with errors to the one place that draws it and chooses the exit code."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in report.diagnostics))
        self.report = report


@dataclass(frozen=True)
class Report:
    """Everything that one pass over a recipe found, and the lines it talks about."""

    diagnostics: tuple[Diagnostic, ...] = ()
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(file, its lines) for each file that a span may name; one that could not be read is absent."""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(found for found in self.diagnostics if found.severity == "error")

    def plus(self, more: Iterable[Diagnostic]) -> Report:
        return Report((*self.diagnostics, *more), self.sources)
