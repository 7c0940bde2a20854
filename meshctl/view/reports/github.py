"""A report as annotations of GitHub Actions, which GitHub shows at the lines of a pull request.

    ::error file=grpo.yaml,line=19,col=16,endColumn=17,title=MC410::`tp_size` 3 does not fit the 8 ranks of
    group `train`

A log line that begins like this is a command, so text from a recipe is escaped, and the summary must not look
like one.
"""

from __future__ import annotations

from posixpath import join, normpath

from meshctl.diagnostics import Diagnostic, Span
from meshctl.view.reports import Findings, is_file
from meshctl.view.reports.text import shown

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def draw(findings: Findings) -> str:
    lines = []
    for one in findings.checked:
        lines += [annotation(found, findings.folder) for found in one.report.diagnostics]
        lines.append(shown(one.summary).replace("::", ": :").replace("##[", "## ["))
    return "".join(f"{line}\n" for line in lines)


def annotation(found: Diagnostic, folder: str) -> str:
    span, given = found.primary, {"title": found.code}
    text = [shown(found.message)]
    if span and is_file(span.file):
        place = {
            "file": normpath(join(folder, span.file)),
            "line": span.line,
            "col": span.column,
            "endColumn": span.column + span.width,
        }
        given = {**{key: str(value) for key, value in place.items()}, **given}
    elif span:
        text.append(f"at {_place(span)}")
    text += [f"{_place(second)}: {shown(second.label)}" for second in found.seconds]
    text += [f"help: {shown(found.help)}"] if found.help else []
    properties = ",".join(f"{key}={_escaped(shown(value), ':,')}" for key, value in given.items())
    return f"::{COMMANDS[found.severity]} {properties}::{_escaped(chr(10).join(text))}"


def _place(span: Span) -> str:
    return f"{shown(span.file)}:{span.line}:{span.column}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
