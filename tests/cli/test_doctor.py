"""`meshctl doctor`, as a user calls it. Its findings are tested in tests/engines/checks/test_checks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli import doctor as command
from meshctl.cli.doctor import doctor
from meshctl.cli.init import Options, init
from meshctl.diagnostics.health import Check
from meshctl.engines.checks.requirements import Requirements

WELL = (Check("versions", "torch", "ok", "2.13.0"),)
SUBJECTS = ["versions", "network", "memory", "limits", "devices", "disk"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe for cpu and one for cuda, on a machine without faults and without
    devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    assert init("fine", Options("grpo", "cpu")) == 0 and init("far", Options("train", "cuda", 2)) == 0
    return tmp_path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the requirements that are examined."""
    seen: list[Any] = []

    def examined(asked: Any) -> tuple[Check, ...]:
        seen.append(asked)
        return WELL

    monkeypatch.setattr(command, "examine", examined)
    return seen


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    recipe, *overrides = words or ("",)
    code = doctor(recipe, overrides, "json")
    return code, json.loads(capsys.readouterr().out)


def test_without_a_recipe(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys)
    assert code == 0 and found["counts"] == {"ok": 1, "warning": 0, "failure": 0}
    assert checked == [Requirements()]


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for state, code in (("warning", 0), ("failure", 4)):
        monkeypatch.setattr(
            command,
            "examine",
            lambda asked, state=state: (*WELL, Check("disk", "speed", state, "slow", "wait")),
        )
        assert output(capsys)[0] == code


def test_with_a_recipe(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys, "fine.yaml", "groups.train.ranks=2", "run.dir=elsewhere")
    assert code == 0
    assert [(check["name"], check["state"]) for check in found["checks"]] == [
        ("torch", "ok"),
        ("text", "ok"),
        ("start", "ok"),
    ]
    (asked,) = checked
    assert (asked.devices, asked.workers, asked.runs) == ([], 4, "elsewhere")


def test_a_recipe_that_would_not_start_here(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys, "far.yaml")
    assert code == 4 and len(checked) == 1
    assert found["checks"][-1]["found"] == "group train needs the cuda devices 0-1, but this machine has none"


def test_a_recipe_with_errors(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(
        capsys, "fine.yaml", "seed=x", "groups.train.env.API_KEY=sk-1234567890", "run.stepz=1"
    )
    assert code == 1 and "has 3 errors: `seed` must be" in found["checks"][-1]["found"]
    assert found["checks"][-1]["remedy"].startswith("meshctl validate fine.yaml seed=x")
    assert "sk-1234567890" not in json.dumps(found)


def test_a_recipe_that_cannot_be_read(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys, "none.yaml")
    assert code == 3 and found["counts"]["failure"] == 1


def test_there_are_two_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("", [], "xml") == 2
    assert capsys.readouterr() == ("", "error: format `xml` does not exist; available: `text` and `json`\n")


def test_the_table_and_the_json_of_one_examination_agree(
    checked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = output(capsys, "far.yaml")[1]
    doctor("far.yaml", [], "text")
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80 and "\x1b" not in table
    for check in found["checks"]:
        assert f"  {check['state']:<7}  {check['name']} " in table
        assert check["found"] in " ".join(table.split())


def test_this_machine(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.iterdir())
    code, found = output(capsys, "fine.yaml")
    assert code == (4 if found["counts"]["failure"] else 0)
    assert list(dict.fromkeys(check["subject"] for check in found["checks"])) == [*SUBJECTS, "recipe"]
    assert sorted(here.iterdir()) == before
