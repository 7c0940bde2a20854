"""A report as SARIF 2.1.0, for GitHub code scanning and editors.

    result      a diagnostic: its first span is the location, its other spans are related locations, and its
                fixes are artifact changes
    rule        a code, with its page of `explain`
    artifact    a file; overrides and standard input contain their text

File names are URIs relative to the working directory. Columns count characters (`unicodeCodePoints`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from posixpath import join, normpath
from typing import Any
from urllib.parse import quote

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.view.reports import Checked, Findings, is_file
from meshctl.view.reports.json import dumped

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def draw(findings: Findings) -> str:
    return dumped({"$schema": SCHEMA, "version": "2.1.0", "runs": [_Run(findings).run()]})


class _Run:
    """One run of the tool; results refer to rules and artifacts by index."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.codes = sorted({found.code for one in findings.checked for found in one.report.diagnostics})
        lines: dict[str, Sequence[str]] = {}
        for one in findings.checked:
            lines.update(one.report.sources)
        all = [(one, found) for one in findings.checked for found in one.report.diagnostics]
        self.files = list(
            dict.fromkeys(
                file
                for one, found in all
                for file in (
                    *(span.file for span in (found.primary, *found.seconds) if span),
                    *(fix.span.file for fix in found.fixes),
                    *([] if found.primary else [one.recipe]),
                )
            )
        )
        self.lines = lines

    def run(self) -> dict[str, Any]:
        driver = {
            "name": "meshctl",
            "version": self.findings.version,
            "rules": [self.rule(code) for code in self.codes],
        }
        return {
            "tool": {"driver": driver},
            "invocations": [
                {"executionSuccessful": self.findings.code != 70, "exitCode": self.findings.code}
            ],
            "artifacts": [self.artifact(file) for file in self.files],
            "results": [
                self.result(found, one) for one in self.findings.checked for found in one.report.diagnostics
            ],
            "columnKind": "unicodeCodePoints",
        }

    def rule(self, code: str) -> dict[str, Any]:
        page = self.findings.explained(code).strip() or f"meshctl explain {code}"
        short = {"text": page.splitlines()[0]}
        return {"id": code, "shortDescription": short, "fullDescription": short, "help": {"text": page}}

    def artifact(self, file: str) -> dict[str, Any]:
        found: dict[str, Any] = {"location": {"uri": self.uri(file)}}
        if not is_file(file):
            found["roles"] = ["standardStream" if file.startswith("<") else "referencedOnCommandLine"]
            found["contents"] = {"text": "\n".join(self.lines.get(file, ()))}
        return found

    def uri(self, file: str) -> str:
        if file.startswith("/"):
            return f"file://{quote(os.fsencode(file))}"
        return quote(os.fsencode(normpath(join(self.findings.folder, file)) if is_file(file) else file))

    def result(self, found: Diagnostic, one: Checked) -> dict[str, Any]:
        text = f"{found.message}\nhelp: {found.help}" if found.help else found.message
        result: dict[str, Any] = {
            "ruleId": found.code,
            "ruleIndex": self.codes.index(found.code),
            "level": found.severity,
            "message": {"text": text},
            "locations": [
                self.location(found.primary)
                if found.primary
                else {"physicalLocation": self.place(one.recipe)}
            ],
        }
        if found.seconds:
            result["relatedLocations"] = [
                {"id": index, **self.location(span)} for index, span in enumerate(found.seconds, 1)
            ]
        if found.fixes:
            result["fixes"] = [self.fix(found.fixes)]
        return result

    def location(self, span: Span) -> dict[str, Any]:
        lines = self.lines.get(span.file, ())
        region = _region(span)
        if span.line <= len(lines):
            region["snippet"] = {"text": lines[span.line - 1]}
        label = {"message": {"text": span.label}} if span.label else {}
        return {"physicalLocation": {**self.place(span.file), "region": region}, **label}

    def place(self, file: str) -> dict[str, Any]:
        return {"artifactLocation": {"uri": self.uri(file), "index": self.files.index(file)}}

    def fix(self, fixes: Sequence[Fix]) -> dict[str, Any]:
        label = "; ".join(f"`{fix.was}` -> `{fix.text}`" for fix in fixes)
        by_file = groupby(sorted(fixes, key=lambda fix: fix.span), lambda fix: fix.span.file)
        return {
            "description": {"text": label},
            "artifactChanges": [self.change(file, list(some)) for file, some in by_file],
        }

    def change(self, file: str, fixes: list[Fix]) -> dict[str, Any]:
        edits = [{"deletedRegion": _region(fix.span), "insertedContent": {"text": fix.text}} for fix in fixes]
        return {**self.place(file), "replacements": edits}


def _region(span: Span) -> dict[str, Any]:
    return {"startLine": span.line, "startColumn": span.column, "endColumn": span.column + span.width}
