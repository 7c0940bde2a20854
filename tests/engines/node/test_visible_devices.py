"""The devices that a worker sees, and their hardware names."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.engines.engine import CannotStart
from meshctl.engines.node.visible_devices import DeviceList, device_list, visible_names
from meshctl.plan.model import Group, Plan, Program, Run
from meshctl.topology.cluster import Cluster


def cuda(*runs: tuple[int, int], per_worker: int = 1, **more: Any) -> Group:
    devices = sum(stop - start for start, stop in runs)
    return Group("train", "cuda", devices // per_worker, 0, devices=runs, gpus_per_worker=per_worker, **more)


def seen(group: Group, rank: int, inherited: str | None = None, cluster: Cluster | None = None) -> list[str]:
    plan = Plan("test", 0, cluster or Cluster.of(1, cuda=8), (group,), (), (), (), Run())
    return visible_names(
        plan,
        plan.worker("train", rank),
        device_list("cuda", {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}),
    )


def test_a_components_worker_sees_its_own_devices() -> None:
    assert seen(cuda((4, 6)), 1) == ["5"]
    assert seen(cuda((4, 8), per_worker=2), 1) == ["6", "7"]


def test_a_programs_worker_sees_its_groups_as_under_torchrun() -> None:
    assert seen(cuda((4, 6), program=Program(("x.py",))), 1) == ["4", "5"]
    assert seen(cuda((6, 7), (1, 3), program=Program(("x.py",))), 1) == ["6", "1", "2"]


def test_a_programs_worker_with_several_devices_sees_only_them() -> None:
    program = Program(("x.py",))
    assert [seen(cuda((4, 8), per_worker=2, program=program), rank) for rank in (0, 1)] == [
        ["4", "5"],
        ["6", "7"],
    ]


def test_devices_are_counted_on_their_own_node() -> None:
    uneven = Cluster.of(3, cuda=[8, 2, 4])
    group = cuda((6, 14))
    assert [seen(group, rank, cluster=uneven) for rank in range(8)] == [
        ["6"],
        ["7"],
        ["0"],
        ["1"],
        ["0"],
        ["1"],
        ["2"],
        ["3"],
    ]
    assert seen(cuda((6, 14), program=Program(("x.py",))), 3, cluster=uneven) == ["0", "1"]
    assert seen(cuda((6, 14), per_worker=2, visible_devices=("4", "5", "6", "7")), 3, cluster=uneven) == [
        "6",
        "7",
    ]


@pytest.mark.parametrize(
    ("inherited", "names"),
    [
        ("4,5", ["4", "5"]),
        (" 7 , 3,", ["7", "3"]),
        ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
        ("MIG-GPU-1/7/0,MIG-2", ["MIG-GPU-1/7/0", "MIG-2"]),
        ("0,1,-1,2", ["0", "1"]),
    ],
)
def test_the_launchers_own_list_narrows_and_renumbers(inherited: str, names: list[str]) -> None:
    assert [seen(cuda((0, 2)), rank, inherited) for rank in range(2)] == [[name] for name in names]


@pytest.mark.parametrize("inherited", ["", "-1", "NoDevFiles", "0", "1,1"])
def test_too_few_devices_are_reported_by_group_and_numbers(inherited: str) -> None:
    with pytest.raises(CannotStart) as refused:
        seen(cuda((0, 2), (3, 4)), 0, inherited)
    left = f"CUDA_VISIBLE_DEVICES={inherited} leaves {'1' if inherited == '0' else 'none'}"
    assert str(refused.value) == f"group train needs the cuda devices 0-1, 3 of its node, but {left}"


def test_a_groups_visible_devices_are_names_of_the_hardware() -> None:
    assert seen(cuda((0, 2), visible_devices=("8", "9")), 1) == ["9"]
    assert seen(cuda((4, 6), visible_devices=("9", "8")), 1, "7,8,9") == ["8"]
    assert seen(cuda((0, 1), visible_devices=("GPU-abc",)), 0, "GPU-0,GPU-abcdef") == ["GPU-abc"]
    with pytest.raises(CannotStart) as refused:
        seen(cuda((0, 2), visible_devices=("8", "9")), 0, "8,10")
    message = (
        "group train needs 8, 9 (its visible_devices), but CUDA_VISIBLE_DEVICES leaves 8, 10: 9 is not there"
    )
    assert str(refused.value) == message
    with pytest.raises(CannotStart, match="leaves none: 8, 9 are not there"):
        seen(cuda((0, 2), visible_devices=("8", "9")), 0, "")


def test_the_facts_of_an_environment() -> None:
    assert device_list("cuda", {}) is None and device_list("cpu", {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert device_list("mps", {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert device_list("npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}) == DeviceList(
        "ASCEND_RT_VISIBLE_DEVICES", "2,3", ("2", "3")
    )
    both = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}
    assert device_list("cuda", both) == DeviceList("CUDA_VISIBLE_DEVICES", "0", ("0",))
    assert device_list("cuda", both, rocm=True) == DeviceList("HIP_VISIBLE_DEVICES", "1", ("1",))
