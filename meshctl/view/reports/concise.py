"""A report as lines that editors and `grep` read: `file:line:column: CODE message`.

A diagnostic without a span stands at the beginning of its recipe. A correct recipe has no lines.
"""

from __future__ import annotations

from meshctl.diagnostics import Diagnostic
from meshctl.view.reports import Findings
from meshctl.view.reports.text import shown


def draw(findings: Findings) -> str:
    return "".join(
        f"{line(found, one.recipe)}\n" for one in findings.checked for found in one.report.diagnostics
    )


def line(found: Diagnostic, recipe: str) -> str:
    span = found.primary
    place = f"{span.file}:{span.line}:{span.column}" if span else f"{recipe}:1:1"
    severity = "" if found.severity == "error" else f"{found.severity}: "
    return shown(f"{place}: {found.code} {severity}{found.message}")
