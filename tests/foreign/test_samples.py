"""Configurations of other systems, as their users have them: each is converted and validates, and each planted
mistake is found at its line. `samples/FORMAT/cases.yaml` lists them; `change` replaces a text of a right file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from meshctl.foreign.convert import convert
from meshctl.foreign.lint import findings
from meshctl.foreign.source import read
from meshctl.foreign.table import recognised, table
from meshctl.foreign.write import text_of
from meshctl.recipe.compose.folders import real
from meshctl.recipe.load import load

SAMPLES = Path(__file__).parent / "samples"
LACKING = {"MC322", "MC323", "MC507", "MC501", "MC502", "MC503"}
"""Codes about what this machine lacks: interpreters, libraries, and modules of users."""
CASES = [
    pytest.param(
        file.parent.name, case, id=f"{file.parent.name}/{case['file']}-{case.get('change', ['', ''])[1]}"
    )
    for file in sorted(SAMPLES.glob("*/cases.yaml"))
    for case in yaml.safe_load(file.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("format", "case"), CASES)
def test_a_configuration(format: str, case: dict[str, Any], tmp_path: Path) -> None:
    files = [SAMPLES / format / one for one in str(case["file"]).split()]
    if change := case.get("change"):
        text = files[0].read_text()
        assert text.count(change[0]) == 1
        files[0] = tmp_path / files[0].name
        files[0].write_text(text.replace(*change))
    source = read(files)
    assert recognised(source) == format
    found = convert(source, table(format))
    assert {one.given.key for one in found.entries} == {one.key for one in found.source.given}
    assert all(one.what for one in found.entries)
    report = findings(found, SAMPLES / format)
    if expected := case.get("finding"):
        places = [
            (one.primary.line if one.primary else 0, one.code, one.message) for one in report.diagnostics
        ]
        assert any(
            line == expected["line"] and code == expected["code"] and expected["says"] in message
            for line, code, message in places
        ), places
        return
    assert [one.message for one in report.errors] == []
    assert int(found.changes_training) == case["exit"] and found.kind == case["kind"]
    text = text_of(found.recipe, found.comments)
    loaded = load(
        "recipe.yaml", [], SAMPLES / format, held={real(SAMPLES / format / "recipe.yaml"): text.encode()}
    )
    assert [one.message for one in loaded.report.errors if one.code not in LACKING] == [], text


def test_there_are_enough() -> None:
    right = [case for case in CASES if "finding" not in case.values[1]]
    assert len(right) >= 20 and len(CASES) - len(right) >= 15
    assert {case.values[0] for case in right} == {one.parent.name for one in SAMPLES.glob("*/cases.yaml")}
