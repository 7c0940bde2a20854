"""A report as lines that editors and `grep` read: `file:line:column: CODE message`.

A diagnostic without a span stands at the beginning of its recipe. A correct recipe has no lines.
"""

from __future__ import annotations

from meshctl.view.reports import Findings
from meshctl.view.reports.text import shown


def draw(findings: Findings) -> str:
    lines = []
    for one in findings.checked:
        for found in one.report.diagnostics:
            span = found.primary
            place = f"{span.file}:{span.line}:{span.column}" if span else f"{one.recipe}:1:1"
            severity = "" if found.severity == "error" else f"{found.severity}: "
            lines.append(shown(f"{place}: {found.code} {severity}{found.message}") + "\n")
    return "".join(lines)
