"""The formats of a `Report`: one module for each, with `draw(findings)`.

A new format is a module with `draw` and a line in `FORMATS`. Every format contains all diagnostics in the
same order, except that `text` stops after `MAX_SHOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Report

STDIN = "<stdin>"
"""The file name of standard input in a span."""
FORMATS: Mapping[str, str] = {
    "text": "for people",
    "concise": "a line for each: file:line:column: CODE message",
    "json": "everything, versioned",
    "github": "annotations of GitHub Actions",
    "sarif": "SARIF 2.1.0, for code scanning",
}


@dataclass(frozen=True)
class Checked:
    """The result of checking one recipe."""

    recipe: str
    """The recipe, as the user named it."""
    code: int
    """0: no errors; 1: errors (or warnings with `--strict`); 3: it cannot be read; 70: a bug."""
    report: Report
    summary: str
    """The result in one line."""
    plan: Mapping[str, str | int] = field(default_factory=dict)
    """For a correct recipe: its name, the digest of its plan, and its numbers of groups, stages and so on."""
    fixed: tuple[Diagnostic, ...] = ()
    """The diagnostics that `--fix` has fixed."""

    def count(self, severity: str) -> int:
        return sum(found.severity == severity for found in self.report.diagnostics)


@dataclass(frozen=True)
class Findings:
    """The results for all recipes of one command line."""

    checked: tuple[Checked, ...]
    version: str = ""
    """The version of meshctl."""
    color: bool = False
    folder: str = ""
    """The path of the working directory relative to the user's checkout in CI; otherwise empty. The reports
    `github` and `sarif` prepend it to file names."""
    explained: Callable[[str], str] = field(default=lambda code: "")
    """Returns the page of a code, with its title on the first line; empty if it has none."""

    @property
    def code(self) -> int:
        """The highest exit code of the checked recipes, and 0 if there are none."""
        return max((one.code for one in self.checked), default=0)


def is_file(name: str) -> bool:
    """Returns whether the file name of a span names a file, and not an override or standard input."""
    return name != STDIN and re.fullmatch(r"override \d+", name) is None
