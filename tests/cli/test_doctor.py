"""`meshctl doctor`, as a user calls it: what it examines, and with `--run` its runs, which leave nothing. Its findings
are tested in tests/engines/checks/test_checks.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli import doctor as command
from meshctl.cli.doctor import RECIPE, check_of, doctor, gpu_names, path_runs
from meshctl.cli.init import Options, init
from meshctl.cli.load import plan_of
from meshctl.diagnostics import Check
from meshctl.engines.checks.device_files import hardware_names, numbers_on_node
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.engine import engine_named
from meshctl.plan.model import Plan
from meshctl.plan.views.distances import distances
from meshctl.run.directory import Start
from tests.cli.commands import MAIN, code_of
from tests.runtime.devices.standin import gpus

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


@pytest.mark.parametrize(
    ("words", "code", "asked"),
    [
        ([], 0, None),
        (["fine.yaml", "groups.train.ranks=2", "run.dir=elsewhere"], 0, ([], 4, "elsewhere")),
        (["far.yaml"], 4, ([], 2, "runs")),
        (["none.yaml"], 3, None),
    ],
)
def test_what_is_examined(
    words: list[str], code: int, asked: Any, checked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found_code, found = output(capsys, *words)
    [needs] = checked
    assert found_code == code and found["counts"]["failure"] == (code != 0)
    assert (needs.devices, needs.workers, needs.runs) == asked if asked else needs == Requirements()
    checks = {check["name"]: check for check in found["checks"]}
    if code == 0 and words:
        assert {name: check["state"] for name, check in checks.items()} == dict.fromkeys(
            ("torch", "text", "start"), "ok"
        )
    if code == 4:
        refusal = "group train needs the cuda devices 0-1, but this machine has none"
        assert found["checks"][-1]["found"] == refusal


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for state, code in (("warning", 0), ("failure", 4)):
        found = (*WELL, Check("disk", "speed", state, "slow", "wait"))
        monkeypatch.setattr(command, "examine", lambda asked, found=found: found)
        assert output(capsys)[0] == code


def test_a_recipe_with_errors(checked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("seed=x", "groups.train.env.API_KEY=sk-1234567890", "run.stepz=1")
    code, found = output(capsys, "fine.yaml", *words)
    assert code == 1 and "has 3 errors: `seed` must be" in found["checks"][-1]["found"]
    assert found["checks"][-1]["remedy"].startswith("meshctl validate fine.yaml seed=x")
    assert "sk-1234567890" not in json.dumps(found)
    assert code_of(doctor, "", [], "xml") == 2
    assert capsys.readouterr() == ("", "error: format `xml` does not exist; available: `text` and `json`\n")


def test_the_table_and_the_json_of_one_examination_agree(
    checked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = output(capsys, "far.yaml")[1]
    doctor("far.yaml", [], "text")
    table = capsys.readouterr().out
    assert "\x1b" not in table
    for check in found["checks"]:
        assert f"  {check['state']:<7}  {check['name']} " in table
        assert check["found"] in table


def test_this_machine(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.iterdir())
    code, found = output(capsys, "fine.yaml")
    assert code == (4 if found["counts"]["failure"] else 0)
    assert list(dict.fromkeys(check["subject"] for check in found["checks"])) == [*SUBJECTS, "recipe"]
    assert sorted(here.iterdir()) == before


# --run

BROKEN_TCP = """\
from meshctl.runtime.transports.tcp.transport import TcpTransport
post = TcpTransport.post
def broken(self, to, tag, lease, **more):
    if lease.frame.numel() > 1 << 20:
        lease.frame[lease.frame.numel() // 2] ^= 64
    post(self, to, tag, lease, **more)
TcpTransport.post = broken
"""
"""Changes one bit of each large frame."""


@pytest.mark.parametrize("gpus", [0, 1, 2, 5])
def test_every_run_is_a_recipe_that_the_engine_accepts(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    for number in range(gpus):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    names = [str(number) for number in range(gpus)]
    assert gpu_names() == tuple(names)
    used, between = {}, set[str]()
    for title, overrides in path_runs(names):
        ready = plan_of(str(RECIPE), overrides)
        engine_named("loopback").preflight(ready.plan, Start(ready.path))
        used[title] = devices_used(ready.plan)
        between |= {each for route in ready.plan.routes for each in distances(ready.plan, route)}
    assert gpus < 2 or between >= {"node", "nodes", "device", "devices"}
    half = max(1, gpus // 2)
    expected: dict[str, set[str]] = {"cpu": set()}
    if gpus:
        expected |= {"cuda": set(names[: min(gpus, 2 * half)]), "cuda to cpu": set(names)}
    if gpus > 1:
        expected["nccl"] = set(names[: 2 * half])
    assert used == expected


def devices_used(plan: Plan) -> set[str]:
    """Returns the hardware names of the devices of all groups, on all nodes."""
    return {
        name
        for group in plan.groups
        if group.device_type == "cuda"
        for node in plan.nodes_of(group.name)
        for name in hardware_names(group, numbers_on_node(plan, group, node), None)
    }


def test_a_launch_that_fails_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("note\nerror: two:1 failed in step 2: lost one:0\nerror: more\n")
    check = check_of("cuda", tmp_path, 5)
    assert (check.name, check.found) == ("cuda", "two:1 failed in step 2: lost one:0")
    assert str(tmp_path) in check.remedy
    (tmp_path / "output.txt").write_text("")
    assert check_of("cpu", tmp_path, -9).found == "killed by SIGKILL"


def started(folder: Path, before: str = "", **variables: str) -> subprocess.Popen[str]:
    """Starts the command in an empty folder, with temporary files in `folder/temporary`."""
    (folder / "empty").mkdir()
    (folder / "temporary").mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary"), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", before + MAIN, "doctor", "--run", "--format", "json"],
        cwd=folder / "empty",
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def paths_of(output: str) -> dict[str, dict[str, str]]:
    """Returns name -> check of each run."""
    return {check["name"]: check for check in json.loads(output)["checks"] if check["subject"] == "paths"}


def right_paths(folder: Path, **variables: str) -> set[str]:
    """Runs the command, and returns the names of its runs, which leave nothing and are right."""
    run = started(folder, **variables)
    output, errors = run.communicate()
    found = paths_of(output)
    assert (run.returncode, errors) == (0, "") and {check["state"] for check in found.values()} == {"ok"}
    assert not list((folder / "empty").iterdir()) and not list((folder / "temporary").iterdir())
    return {*found}


@pytest.mark.slow_suite
def test_all_paths_of_this_machine(tmp_path: Path) -> None:
    assert right_paths(tmp_path, CUDA_VISIBLE_DEVICES="") == {"cpu"}


@gpus(1)
def test_all_paths_of_devices(tmp_path: Path) -> None:
    assert right_paths(tmp_path) >= {"cpu", "cuda", "cuda to cpu"}


@pytest.mark.slow_suite
def test_a_transport_that_changes_a_bit_is_found(tmp_path: Path) -> None:
    run = started(tmp_path, BROKEN_TCP, CUDA_VISIBLE_DEVICES="")
    output, _ = run.communicate()
    found = paths_of(output)["cpu"]
    assert run.returncode == 4 and found["state"] == "failure"
    assert "wrong values arrived" in found["found"]
    [kept] = (tmp_path / "temporary").iterdir()
    assert str(kept) in found["remedy"]


@pytest.mark.slow_suite
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    run = started(tmp_path, CUDA_VISIBLE_DEVICES="")
    temporary = tmp_path / "temporary"
    while not list(temporary.glob("meshctl-doctor-*/doctor/*/events/*-*.jsonl")):
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    output, _ = run.communicate()
    assert (run.returncode, output) == (130, "")
    assert not list(temporary.iterdir()) and not list((tmp_path / "empty").iterdir())
