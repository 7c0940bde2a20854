"""The local engine before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import plan_of

from meshctl.engines.local import commands, count_devices, preflight
from meshctl.engines.worker import CannotStart
from meshctl.plan.model import Cluster, Group, Plan, Program, Run
from meshctl.run import RunDir, Start


def test_commands_are_pure(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ("one", 2), ("two", Program(("x.py",))))
    lines = [" ".join(command.argv) for command in commands(plan, RunDir(Path("/runs/a b")), "127.0.0.1:7")]
    assert lines == [
        "meshctl agent --plan /runs/a b/plan.json --group one --node 0 --head 127.0.0.1:7",
        "meshctl agent --plan /runs/a b/plan.json --group two --node 0 --head 127.0.0.1:7",
    ]
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert count_devices("cuda") == 2
    group = Group("train", "cuda", 2, 0, devices=((0, 2),))
    preflight(Plan("test", 0, Cluster(1, 2), (group,), (), (), (), Run()), Start(("/",)))
    with pytest.raises(CannotStart, match="the plan has 4, this machine has 2"):
        preflight(Plan("test", 0, Cluster(1, 4), (group,), (), (), (), Run()), Start(("/",)))
    with pytest.raises(CannotStart, match="the plan has 2 nodes"):
        preflight(Plan("test", 0, Cluster(2, 1), (group,), (), (), (), Run()), Start(("/",)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_devices("cuda") == 0


def test_what_the_environment_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    with pytest.raises(CannotStart, match="MY_TOKEN"):
        preflight(plan_of(tmp_path, ("one", 1), env=(("TOKEN", "${oc.env:MY_TOKEN}"),)), Start(("/",)))
    with pytest.raises(CannotStart, match=r"none\.py"):
        preflight(plan_of(tmp_path, ("one", Program(("none.py",)))), Start(("/",)))
