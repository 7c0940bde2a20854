"""`meshctl doctor`, as a user calls it. Its findings are tested in tests/engines/checks/test_checks.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli import doctor as command
from meshctl.cli.doctor import doctor
from meshctl.cli.init import Options, init
from meshctl.diagnostics.health import Check
from meshctl.engines.checks import runner
from meshctl.engines.checks.requirements import Requirements
from tests.cli.commands import MAIN
from tests.hang import HANG_S

WELL = (Check("versions", "torch", "ok", "2.13.0"),)
SUBJECTS = ["versions", "devices", "network", "memory", "limits", "disk", "clock"]


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
    assert checked[0].device_types is None and checked[0].workers == 0


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for state, code in (("warning", 0), ("failure", 4)):
        monkeypatch.setattr(
            command,
            "examine",
            lambda asked, state=state: (*WELL, Check("disk", "speed", state, "slow", "wait")),
        )
        assert output(capsys)[0] == code


def test_with_a_recipe(checked: list[Any], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys, "fine.yaml", "groups.train.ranks=2", "run.dir=elsewhere")
    assert code == 0
    assert [(check["name"], check["state"]) for check in found["checks"]] == [
        ("torch", "ok"),
        ("text", "ok"),
        ("start", "ok"),
    ]
    (asked,) = checked
    assert (asked.device_types, asked.workers, asked.runs) == (["cpu"], 4, "elsewhere") and asked.path[
        0
    ] == str(here)


def test_a_recipe_that_would_not_start_here(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = output(capsys, "far.yaml")
    assert code == 4 and checked[0].device_types == ["cuda"]
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


PATIENT = f"""
from dataclasses import replace
from meshctl.engines.checks import runner
runner.TOPICS = {{name: replace(topic, seconds={HANG_S}) for name, topic in runner.TOPICS.items()}}
"""
"""Gives each topic as much time as it needs on a busy machine."""
HANGING = f"""{PATIENT}
from meshctl.engines.checks import probe
start = probe.Probe.__init__
probe.Probe.__init__ = lambda self, function, arguments, seconds: start(self, "time:sleep", [1000], seconds)
"""
"""Has each topic take a thousand seconds."""


@pytest.mark.slow
def test_this_machine(here: Path) -> None:
    """Examines this machine: every topic has findings, and no process or file is left."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    before = sorted(here.iterdir())
    run = [sys.executable, "-c", PATIENT + MAIN, "doctor", "fine.yaml", "--format", "json"]
    done = subprocess.run(run, cwd=here, env=environ, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == (4 if found["counts"]["failure"] else 0) and done.stderr == ""
    assert list(dict.fromkeys(check["subject"] for check in found["checks"])) == [*SUBJECTS, "recipe"]
    assert not [check for check in found["checks"] if check["name"] == "all of it"]
    assert sorted(here.iterdir()) == before


def test_ctrl_c_leaves_nothing_behind(here: Path) -> None:
    before = sorted(here.iterdir())
    run = subprocess.Popen(
        [sys.executable, "-c", HANGING + MAIN, "doctor"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    while len(started := children_of(run.pid)) < len(runner.TOPICS):
        time.sleep(0.01)
        assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    out, errors = run.communicate()
    assert (run.returncode, out) == (130, "") and "Traceback" not in errors
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        time.sleep(0.02)
    assert sorted(here.iterdir()) == before


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_the_examination_never_raises(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """Each topic fails in another way, in the child process or in `judge`."""
    errors: list[type[Exception]] = [OSError, ValueError, KeyError, RecursionError]
    broken = {}
    for number, (subject, topic) in enumerate(runner.TOPICS.items()):

        def judge(*_: Any, error: type[Exception] = errors[number % 4]) -> Any:
            raise error("odd")

        broken[subject] = replace(topic, judge=judge, seconds=HANG_S if number % 2 else 0.0)
    monkeypatch.setattr(runner, "TOPICS", broken)
    found = runner.examine(Requirements())
    assert [(check.subject, check.state) for check in found] == [(subject, "warning") for subject in broken]
    assert all(check.found.startswith("could not be examined: ") for check in found)
