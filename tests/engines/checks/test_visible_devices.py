"""The devices that a worker sees, and their hardware names."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.engines.checks.device_files import DeviceList, device_list, visible_names
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Group, Plan, Program, Run
from meshctl.topology.cluster import Cluster

UNEVEN = Cluster.of(3, cuda=[8, 2, 4])
PROGRAM = Program(("x.py",))


def cuda(*runs: tuple[int, int], per_worker: int = 1, **more: Any) -> Group:
    devices = sum(stop - start for start, stop in runs)
    return Group("train", "cuda", devices // per_worker, 0, devices=runs, gpus_per_worker=per_worker, **more)


def seen(group: Group, rank: int, inherited: str | None = None, cluster: Cluster | None = None) -> str:
    plan = Plan("test", 0, cluster or Cluster.of(1, cuda=8), (group,), (), (), (), Run())
    environ = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    return " ".join(visible_names(plan, plan.worker("train", rank), device_list("cuda", environ)))


@pytest.mark.parametrize(
    ("group", "cluster", "inherited", "by_rank"),
    [
        (cuda((4, 6)), None, None, ["4", "5"]),
        (cuda((4, 8), per_worker=2), None, None, ["4 5", "6 7"]),
        (cuda((4, 6), program=PROGRAM), None, None, ["4 5", "4 5"]),  # as under torchrun
        (cuda((6, 7), (1, 3), program=PROGRAM), None, None, ["6 1 2"] * 3),
        (cuda((4, 8), per_worker=2, program=PROGRAM), None, None, ["4 5", "6 7"]),
        (cuda((6, 14)), UNEVEN, None, [*"67010123"]),  # counted on their own node
        (cuda((6, 14), program=PROGRAM), UNEVEN, None, ["6 7", "6 7", "0 1", "0 1", *["0 1 2 3"] * 4]),
        (cuda((0, 2)), None, "4,5", ["4", "5"]),
        (cuda((0, 2)), None, " 7 , 3,", ["7", "3"]),
        (cuda((0, 2)), None, "GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
        (cuda((0, 2)), None, "MIG-GPU-1/7/0,MIG-2", ["MIG-GPU-1/7/0", "MIG-2"]),
        (cuda((0, 2)), None, "0,1,-1,2", ["0", "1"]),
        (cuda((0, 2), visible_devices=("8", "9")), None, None, ["8", "9"]),
        (cuda((4, 6), visible_devices=("9", "8")), None, "7,8,9", ["9", "8"]),
        (cuda((0, 1), visible_devices=("GPU-abc",)), None, "GPU-0,GPU-abcdef", ["GPU-abc"]),
        (
            cuda((6, 14), per_worker=2, visible_devices=("4", "5", "6", "7")),
            UNEVEN,
            None,
            ["4 5", "4 5", "4 5", "6 7"],
        ),
    ],
)
def test_the_devices_of_each_rank(
    group: Group, cluster: Cluster | None, inherited: str | None, by_rank: list[str]
) -> None:
    assert [seen(group, rank, inherited, cluster) for rank in range(group.workers)] == by_rank


@pytest.mark.parametrize("inherited", ["", "-1", "NoDevFiles", "0", "1,1"])
def test_too_few_devices_are_reported_by_group_and_numbers(inherited: str) -> None:
    with pytest.raises(CannotStart) as refused:
        seen(cuda((0, 2), (3, 4)), 0, inherited)
    left = f"CUDA_VISIBLE_DEVICES={inherited} leaves {'1' if inherited == '0' else 'none'}"
    assert str(refused.value) == f"group train needs the cuda devices 0-1, 3 of its node, but {left}"


@pytest.mark.parametrize(
    ("inherited", "left"), [("8,10", "8, 10: 9 is not there"), ("", "none: 8, 9 are not there")]
)
def test_a_groups_visible_devices_that_are_not_there_are_named(inherited: str, left: str) -> None:
    with pytest.raises(CannotStart) as refused:
        seen(cuda((0, 2), visible_devices=("8", "9")), 0, inherited)
    why = f"group train needs 8, 9 (its visible_devices), but CUDA_VISIBLE_DEVICES leaves {left}"
    assert str(refused.value) == why


def test_the_facts_of_an_environment() -> None:
    assert device_list("cuda", {}) is None and device_list("cpu", {"CUDA_VISIBLE_DEVICES": "0"}) is None
    npu = DeviceList("ASCEND_RT_VISIBLE_DEVICES", "2,3", ("2", "3"))
    assert device_list("npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}) == npu
    both = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}
    assert device_list("cuda", both) == DeviceList("CUDA_VISIBLE_DEVICES", "0", ("0",))
    assert device_list("cuda", both, rocm=True) == DeviceList("HIP_VISIBLE_DEVICES", "1", ("1",))
