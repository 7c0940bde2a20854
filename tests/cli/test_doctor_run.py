"""`meshctl doctor --run`: its runs are valid recipes, a broken transport is found, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshctl.cli.doctor_run import RECIPE, check_of, gpu_names, path_runs
from meshctl.cli.load import plan_of
from meshctl.engines.engine import engine_named
from meshctl.engines.node.visible_devices import hardware_names, numbers_on_node
from meshctl.plan.model import Plan
from meshctl.plan.views.distances import distances
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
    used = {}
    for title, overrides in path_runs(names):
        ready = plan_of(str(RECIPE), overrides)
        engine_named("loopback").preflight(ready.plan, Start(ready.path))
        used[title] = devices_used(ready.plan)
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


def test_the_runs_use_every_way_between_workers() -> None:
    used = set[str]()
    for _, overrides in path_runs(["0", "1"]):
        plan = plan_of(str(RECIPE), overrides).plan
        used |= {each for route in plan.routes for each in distances(plan, route)}
    assert used >= {"node", "nodes", "device", "devices"}


def test_a_launch_that_fails_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("note\nerror: two:1 failed in step 2: lost one:0\nerror: more\n")
    check = check_of("cuda", tmp_path, 5)
    assert (check.name, check.found) == ("cuda", "two:1 failed in step 2: lost one:0")
    assert str(tmp_path) in check.remedy
    (tmp_path / "output.txt").write_text("")
    assert check_of("cpu", tmp_path, -9).found == "killed by SIGKILL"


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
