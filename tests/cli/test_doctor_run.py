"""`meshctl doctor --run`: its runs are valid recipes, a broken transport is found, and nothing is left."""

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
from meshctl.cli import doctor_run
from meshctl.cli.doctor import doctor
from meshctl.cli.doctor_run import RECIPE, PathRun, cause_of, checks_of, gpu_names, path_runs
from meshctl.cli.load import plan_of
from meshctl.cli.requirements import requirements_of
from meshctl.diagnostics.health import Check
from meshctl.engines.engine import engine_named
from meshctl.engines.node.visible_devices import hardware_names, numbers_on_node
from meshctl.plan.model import Plan
from meshctl.plan.views.ways import ways
from meshctl.run.directory import Start
from tests.cli.commands import MAIN
from tests.runtime.devices.standin import gpus

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


@pytest.mark.parametrize("gpus", [0, 1, 2, 5, 8])
def test_every_run_is_a_valid_recipe(gpus: int) -> None:
    names = [str(number) for number in range(gpus)]
    used = {one.title: devices_used(plan_of(str(RECIPE), [*one.overrides]).plan) for one in path_runs(names)}
    half = max(1, gpus // 2)
    expected: dict[str, set[str]] = {"": set()}
    if gpus:
        expected |= {"cuda, ": set(names[: min(gpus, 2 * half)]), "cuda to cpu, ": set(names)}
    if gpus > 1:
        expected["nccl, "] = set(names[: 2 * half])
    assert used == expected


@pytest.mark.parametrize("gpus", [1, 2, 5])
def test_the_engine_accepts_every_run(gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    for number in range(gpus):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    for one in path_runs(gpu_names()):
        ready = plan_of(str(RECIPE), [*one.overrides])
        engine_named("loopback").preflight(ready.plan, Start(ready.path))
        needed = requirements_of(ready).device_bytes
        assert needed.keys() <= set(gpu_names()) and bool(needed) == bool(one.title)


def devices_used(plan: Plan) -> set[str]:
    """Returns the hardware names of the devices of all groups, on all nodes."""
    return {
        name
        for group in plan.groups
        if group.device_type == "cuda"
        for node in plan.nodes_of(group.name)
        for name in hardware_names(group, numbers_on_node(plan, group, node), None)
    }


def test_the_runs_use_every_way_between_workers() -> None:
    used = set[str]()
    for one in path_runs(["0", "1"]):
        plan = plan_of(str(RECIPE), [*one.overrides]).plan
        used |= {way for route in plan.routes for way in ways(plan, route)}
    assert used >= {"node", "nodes", "device", "devices"}


def test_devices_are_counted_as_the_environment_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_names() == ("0", "1", "2", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpu_names() == ("3", "1")


def test_a_launch_that_fails_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("note\nerror: two:1 failed in step 2: lost one:0\nerror: more\n")
    [check] = checks_of(PathRun("cuda, "), tmp_path, 5)
    assert check.subject == "cuda, run" and check.found == "two:1 failed in step 2: lost one:0"
    assert str(tmp_path / "output.txt") in check.remedy
    (tmp_path / "output.txt").write_text("")
    assert cause_of(tmp_path / "output.txt") == ""
    assert checks_of(PathRun(""), tmp_path, -9)[0].found == "killed by SIGKILL"


def test_a_broken_path_is_a_failure_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "examine", lambda asked: ())
    monkeypatch.setattr(command, "run_paths", lambda: (Check("tcp", "first", "failure", "wrong", "look"),))
    assert doctor("", [], "json", run=True) == 4
    assert json.loads(capsys.readouterr().out)["counts"]["failure"] == 1
    assert doctor("", [], "json") == 0


def test_an_interrupt_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> Any:
        raise doctor_run.Interrupted(143)

    monkeypatch.setattr(command, "examine", lambda asked: ())
    monkeypatch.setattr(command, "run_paths", stopped)
    assert doctor("", [], "text", run=True) == 143


# Real runs


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


def paths_of(output: str) -> dict[tuple[str, str], str]:
    """Returns (subject, name) -> state of the checks about paths."""
    found = {(check["subject"], check["name"]): check["state"] for check in json.loads(output)["checks"]}
    first = next(place for place, (subject, _) in enumerate(found) if subject == "shared memory")
    return dict(list(found.items())[first:])


@pytest.mark.slow_suite
def test_all_paths_of_this_machine(tmp_path: Path) -> None:
    run = started(tmp_path, CUDA_VISIBLE_DEVICES="")
    output, errors = run.communicate()
    found = paths_of(output)
    assert (run.returncode, errors) == (0, "") and set(found.values()) == {"ok"}
    subjects = {subject for subject, _ in found}
    assert subjects >= {"shared memory", "tcp", "values", "collectives of one", "collectives of two"}
    assert not list((tmp_path / "empty").iterdir()) and not list((tmp_path / "temporary").iterdir())


@gpus(1)
def test_all_paths_of_devices(tmp_path: Path) -> None:
    run = started(tmp_path)
    output, errors = run.communicate()
    found = paths_of(output)
    assert (run.returncode, errors) == (0, "") and set(found.values()) == {"ok"}
    assert ("cuda, between devices", "slice_dp") in found and ("cuda to cpu, values", "weights") in found


@pytest.mark.slow_suite
def test_a_transport_that_changes_a_bit_is_found(tmp_path: Path) -> None:
    run = started(tmp_path, BROKEN_TCP, CUDA_VISIBLE_DEVICES="")
    output, _ = run.communicate()
    found = paths_of(output)
    failed = {path for path, state in found.items() if state == "failure"}
    assert run.returncode == 4
    assert {("tcp", "first"), ("tcp", "home"), ("run", "end")} <= failed
    assert found["shared memory", "first"] == found["shared memory", "slice_dp"] == "ok"
    end = next(check for check in json.loads(output)["checks"] if check["subject"] == "run")
    [kept] = (tmp_path / "temporary").iterdir()
    assert str(kept) in end["remedy"]


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
