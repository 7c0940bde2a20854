"""A report as JSON, for programs. `version` changes if a key is removed or changes its meaning; keys may be
added.

    {"version": 1, "meshctl": "0.2.0", "exit_code": 1, "recipes": [
      {"recipe": "grpo.yaml", "exit_code": 1, "errors": 1, "warnings": 0, "notes": 0, "fixable": 0, "summary":
      ..., "plan": null,
       "fixed": [], "diagnostics": [
         {"code": "MC410", "severity": "error", "message": ..., "help": ...,
          "primary": {"file": "grpo.yaml", "line": 19, "column": 16, "end_column": 17, "says": "dp 2 x tp 3 =
          6", "text": the line},
          "seconds": [more of them], "fixes": [{"file", "line", "column", "end_column", "was", "text"}]}]}]}

Lines and columns begin with 1 and count characters; `end_column` is exclusive. The file `override 2` is the
second override of the command line. The `fixes` of a diagnostic belong together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Report, Span
from meshctl.view.reports import Checked, Findings

VERSION = 1
Lines = Mapping[str, Sequence[str]]


def draw(findings: Findings) -> str:
    recipes = [recipe(one) for one in findings.checked]
    return dumped(
        {"version": VERSION, "meshctl": findings.version, "exit_code": findings.code, "recipes": recipes}
    )


def dumped(data: object) -> str:
    """Returns JSON in ASCII and without surrogates, which can be written to any stream."""
    return json.dumps(_without_surrogates(data), indent=2) + "\n"


def _without_surrogates(data: object) -> object:
    if isinstance(data, str):
        return data if data.isascii() else data.encode("utf-8", "replace").decode()
    if isinstance(data, Mapping):
        return {key: _without_surrogates(item) for key, item in data.items()}
    return [_without_surrogates(item) for item in data] if isinstance(data, list) else data


def recipe(one: Checked) -> dict[str, Any]:
    return {
        "recipe": one.recipe,
        "exit_code": one.code,
        "errors": one.count("error"),
        "warnings": one.count("warning"),
        "notes": one.count("note"),
        "fixable": sum(bool(found.fixes) for found in one.report.diagnostics),
        "summary": one.summary,
        "plan": dict(one.plan) or None,
        "fixed": [
            {"code": found.code, "message": found.message, "fixes": [*map(_fix, found.fixes)]}
            for found in one.fixed
        ],
        "diagnostics": [diagnostic(found, one.report) for found in one.report.diagnostics],
    }


def diagnostic(found: Diagnostic, report: Report) -> dict[str, Any]:
    lines = dict(report.sources)
    return {
        "code": found.code,
        "severity": found.severity,
        "message": found.message,
        "help": found.help or None,
        "primary": _span(found.primary, lines) if found.primary else None,
        "seconds": [_span(second, lines) for second in found.seconds],
        "fixes": [_fix(fix) for fix in found.fixes],
    }


def _place(span: Span) -> dict[str, Any]:
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_column": span.column + span.width,
    }


def _span(span: Span, lines: Lines) -> dict[str, Any]:
    """Returns a span; its `text` is null if the line could not be read."""
    text = lines.get(span.file, ())
    return {
        **_place(span),
        "says": span.label or None,
        "text": text[span.line - 1] if span.line <= len(text) else None,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {**_place(fix.span), "was": fix.was, "text": fix.text}
