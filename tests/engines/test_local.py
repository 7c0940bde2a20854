"""The local engine before it starts anything."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import plan_of

from meshctl.engines.checks import device_files
from meshctl.engines.checks.device_files import count_devices, is_rocm
from meshctl.engines.engine import CannotStart
from meshctl.engines.local import LocalEngine
from meshctl.plan.model import Cluster, Group, Plan, Program, Run
from meshctl.run.directory import RunDir, Start

preflight = LocalEngine().preflight


def test_what_is_rendered_is_pure_and_a_line_for_each_node(tmp_path: Path) -> None:
    plan = replace(plan_of(tmp_path, ("one", 2), ("two", Program(("x.py",)))), cluster=Cluster(nodes=2))
    rendered = LocalEngine().render(plan, RunDir(Path("/runs/a b")), "127.0.0.1:7")
    assert rendered.files == {}
    assert [" ".join(command.argv) for command in rendered.commands] == [
        "meshctl agent --plan /runs/a b/plan.json --node 0 --head 127.0.0.1:7",
        "meshctl agent --plan /runs/a b/plan.json --node 1 --head 127.0.0.1:7",
    ]
    assert not (tmp_path / "runs").exists()


LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The device files of a machine with four GPUs and two NPUs, and an environment without device lists."""
    (tmp_path / "dev").mkdir()
    files = [f"nvidia{number}" for number in range(4)]
    for name in (*files, "nvidiactl", "davinci0", "davinci1", "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    for name in LISTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device_files, "ROOT", tmp_path)
    return tmp_path


def refusal(*groups: Group) -> str:
    """Returns the error of the preflight; empty if there is none. The node of the plan is larger than the
    machine."""
    try:
        preflight(Plan("test", 0, Cluster.of(1, cuda=16, npu=16), groups, (), (), (), Run()), Start(("/",)))
    except CannotStart as error:
        return str(error)
    return ""


def train(*run: int, kind: Any = "cuda", **more: Any) -> Group:
    return Group("train", kind, run[1] - run[0], 0, devices=((run[0], run[1]),), **more)


def test_a_machine_is_held_against_what_each_group_needs(machine: Path) -> None:
    assert refusal(train(0, 4)) == ""
    assert refusal(train(0, 2), replace(train(0, 2, kind="npu"), name="rollout", first_job_rank=2)) == ""
    assert refusal(train(2, 6)) == "group train needs the cuda devices 2-5, but this machine has 4"
    assert refusal(train(1, 3, kind="npu")) == "group train needs the npu devices 1-2, but this machine has 2"
    assert refusal(train(0, 1, visible_devices=("3",))) == ""
    assert (
        refusal(train(8, 10, visible_devices=("3", "4")))
        == "group train needs 4 (its visible_devices), but this machine has 4"
    )
    assert refusal(train(0, 1, visible_devices=("GPU-1",))) == ""
    assert [count_devices(kind) for kind in ("cuda", "npu")] == [4, 2]
    with pytest.raises(CannotStart, match="the plan has 2 nodes"):
        preflight(Plan("test", 0, Cluster(2), (), (), (), (), Run()), Start(("/",)))


def test_a_list_in_the_environment_is_obeyed_before_the_start(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert refusal(train(0, 2)) == ""
    assert (
        refusal(train(0, 3))
        == "group train needs the cuda devices 0-2 of its node, but CUDA_VISIBLE_DEVICES=2,3 leaves 2"
    )
    assert "leaves 2, 3: 0 is not there" in refusal(train(0, 1, visible_devices=("0",)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,0")  # the driver stops at what the machine does not have
    assert (
        refusal(train(0, 2))
        == "group train needs the cuda devices 0-1 of its node, but CUDA_VISIBLE_DEVICES=3,4,0 leaves 1"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES= leaves none" in refusal(train(0, 1))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert refusal(train(0, 1, kind="npu")) == ""
    assert "ASCEND_RT_VISIBLE_DEVICES=1 leaves 1" in refusal(train(0, 2, kind="npu"))


def test_two_groups_on_one_device_are_marked(machine: Path) -> None:
    guest = replace(train(3, 4, visible_devices=("1",)), name="guest", first_job_rank=2)
    message = "groups train and guest would both have the cuda device 1: give them other visible_devices, or write `colocate: train`"
    assert refusal(train(0, 2), guest) == message
    assert refusal(train(0, 2), replace(guest, colocate="train")) == ""
    assert refusal(train(0, 1), replace(guest, device_type="npu")) == ""


def test_a_machine_without_devices(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (machine / "dev").iterdir():
        file.unlink()
    assert refusal(train(0, 1)) == "group train needs the cuda device 0, but this machine has none"
    assert refusal(train(0, 1, visible_devices=("GPU-1",))).endswith("this machine has none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert refusal(train(0, 2)) == ""


def test_gpus_of_rocm_are_counted_among_its_processors(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_files, "is_rocm", lambda: True)
    for number, text in enumerate(("0", "0", "41234", "5678")):
        folder = machine / "sys/class/kfd/kfd/topology/nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(text + "\n")
    assert count_devices("cuda", rocm=True) == 2
    assert refusal(train(0, 2)) == ""
    assert refusal(train(0, 3)) == "group train needs the cuda devices 0-2, but this machine has 2"
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    assert refusal(train(0, 1)) == "" and "ROCR_VISIBLE_DEVICES=1 leaves 1" in refusal(train(0, 2))


def test_the_backend_of_torch_is_read_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_rocm() == (torch.version.hip is not None)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(
        "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n"
    )
    spec = importlib.machinery.PathFinder.find_spec("torch", [str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert is_rocm()


def test_what_the_environment_lacks_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    with pytest.raises(CannotStart, match="MY_TOKEN"):
        preflight(plan_of(tmp_path, ("one", 1), env=(("TOKEN", "${oc.env:MY_TOKEN}"),)), Start(("/",)))
    with pytest.raises(CannotStart, match=r"none\.py"):
        preflight(plan_of(tmp_path, ("one", Program(("none.py",)))), Start(("/",)))
