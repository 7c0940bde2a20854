"""How a `Report` looks: a file for each format, with `draw(findings)`.

A new format is a file here with `draw`, and a line in `FORMATS`. All of them say every diagnostic, in the
same order; `text` alone stops after a screenful.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meshctl.diagnostics import Diagnostic, Report

STDIN = "<stdin>"
"""What standard input is called in a span."""
FORMATS: Mapping[str, str] = {
    "text": "for people",
    "concise": "a line for each: file:line:column: CODE message",
    "json": "everything, versioned",
    "github": "annotations of GitHub Actions",
    "sarif": "SARIF 2.1.0, for code scanning",
}


@dataclass(frozen=True)
class Checked:
    """What was found in one recipe."""

    recipe: str
    """As the user named it."""
    code: int
    """0 it is right, 1 it has errors (or only warnings, where they count), 3 it cannot be read, 70 a bug."""
    report: Report
    summary: str
    """One line."""
    plan: Mapping[str, str | int] = field(default_factory=dict)
    """Of a right recipe: its name, its plan's digest, and how much there is of everything."""
    fixed: tuple[Diagnostic, ...] = ()
    """What is gone, since the text was changed."""

    def count(self, severity: str) -> int:
        return sum(found.severity == severity for found in self.report.diagnostics)


@dataclass(frozen=True)
class Findings:
    """What there is to say of all recipes of one command line."""

    checked: tuple[Checked, ...]
    version: str = ""
    """Of meshctl."""
    colour: bool = False
    folder: str = ""
    """Where file names begin, seen from where their reader looks for them; empty where that is the same."""
    explained: Callable[[str], str] = field(default=lambda code: "")
    """The page of a code, its title on the first line; empty where it has none."""

    @property
    def code(self) -> int:
        """The worst."""
        return max((one.code for one in self.checked), default=0)


def is_file(name: str) -> bool:
    """Whether a span's file is one: overrides and standard input are none."""
    return name != STDIN and re.fullmatch(r"override \d+", name) is None
