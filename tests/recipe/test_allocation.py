"""Allocation of devices: disjoint by default, exactly as listed, and on the smallest cluster that is
enough."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.recipe.allocation import Allocation, allocate, least_per_node
from meshctl.recipe.model import Cluster, DeviceGroup, NodePool
from meshctl.topology.cluster import Cluster as Nodes
from meshctl.topology.device_ranges import (
    DeviceRanges,
    first_common_device,
    first_split_worker,
    most_per_node,
)
from tests.examples import examples


def placed(*groups: DeviceGroup, cluster: Cluster = Cluster()) -> Allocation:
    return allocate({group.name: group for group in groups}, cluster)


def cuda(nodes: int, each: int) -> Nodes:
    return Nodes.of(nodes, cuda=each)


def numbers(result: Allocation, group: str) -> list[int]:
    return [number for start, stop in result.devices[group] for number in range(start, stop)]


def cuda_group(name: str, ranks: int | tuple[int, ...], each: int = 1, **more: Any) -> DeviceGroup:
    return DeviceGroup(name, ranks, "cuda", each, **more)


ONE_TWO = (cuda_group("a", 1), cuda_group("b", 4, 2))
ONE_EIGHT = (cuda_group("a", 1), cuda_group("b", 8, 4))
TWO_FOUR = (cuda_group("a", 2), cuda_group("b", 4, 2))
UNEVEN = Nodes.of(4, cuda=[6, 3, 4, 1])
POOLS = Cluster(5, nodes_by_pool=(NodePool("gpu", 3, 8), NodePool("small", 2, {"cuda": 4})))
POOLED = Nodes(5, {"cuda": ((3, 8), (2, 4))}, (("gpu", 3), ("small", 2)))


@pytest.mark.parametrize(
    ("groups", "cluster", "devices", "found"),
    [
        # a count takes the next free devices
        ((cuda_group("a", 4), cuda_group("b", (0, 1, 5)), cuda_group("c", 2), DeviceGroup("d", 3, "cpu")),
         Cluster(), {"a": [2, 3, 4, 6], "c": [7, 8], "d": []}, cuda(1, 9)),
        # a worker keeps to one node
        (ONE_TWO, Cluster(2, 4), {"b": [1, 2, 4, 5]}, cuda(2, 4)),
        (ONE_TWO, Cluster(2), {}, cuda(2, 3)),
        (ONE_TWO, Cluster(), {}, cuda(1, 5)),
        # colocated groups share; a list may name the shared devices of another group
        ((cuda_group("c", 1, colocate="b"), cuda_group("b", 2, colocate="a"), cuda_group("a", (3, 4, 5))),
         Cluster(), {"a": [3, 4, 5], "b": [3, 4], "c": [3]}, cuda(1, 6)),
        ((cuda_group("a", 2), cuda_group("b", 4), cuda_group("c", (0, 3), colocate="b")),
         Cluster(), {"a": [1, 2], "b": [0, 3, 4, 5], "c": [0, 3]}, cuda(1, 6)),
        # what is left out is the least
        ((cuda_group("a", 10),), Cluster(), {}, cuda(1, 10)),
        ((cuda_group("a", 10),), Cluster(2), {}, cuda(2, 5)),
        ((cuda_group("a", 10),), Cluster(0, 4), {}, cuda(3, 4)),
        ((cuda_group("a", 10),), Cluster(0, 16), {}, cuda(1, 16)),
        # a job on cpu has no devices
        ((DeviceGroup("a", 3, "cpu"),), Cluster(), {}, Nodes(1)),
        ((DeviceGroup("a", 3, "cpu"),), Cluster(2, 8), {}, Nodes(2)),
        ((DeviceGroup("a", 3, "cpu"),), Cluster(0, (8, 4)), {}, Nodes(2)),
        # nodes may differ
        (ONE_EIGHT, Cluster(0, (6, 3, 4, 1)), {"b": [1, 2, 3, 4, 9, 10, 11, 12]}, UNEVEN),
        # groups that fit in another order
        (TWO_FOUR, Cluster(2, 3), {"a": [2, 5], "b": [0, 1, 3, 4]}, cuda(2, 3)),
        (TWO_FOUR, Cluster(0, 3), {}, cuda(2, 3)),
        ((cuda_group("a", 2, nodes=(0, 1)), cuda_group("b", 2, nodes=(0,))), Cluster(2, 2), {"a": [2, 3], "b": [0, 1]}, cuda(2, 2)),
        # nodes by number and by pool: what is full receives what is free, and the least cluster has the named nodes
        ((cuda_group("a", 6), cuda_group("b", 4, nodes=("small",)), cuda_group("c", 8, nodes=(0,)), DeviceGroup("d", 3, "cpu", nodes=(1, "small"))),
         POOLS, {"a": [*range(8, 14)], "b": [*range(24, 28)], "c": [*range(8)], "d": []}, POOLED),
        ((cuda_group("a", 12, nodes=("small",)),), POOLS, {"a": [*range(24, 32)]}, POOLED),
        ((cuda_group("a", 4, nodes=(2,)), cuda_group("b", 2)), Cluster(), {}, cuda(3, 4)),
        ((cuda_group("a", 4, nodes=("gpu",)),), Cluster(), {}, cuda(1, 4)),
    ],
)  # fmt: skip
def test_allocation(
    groups: Sequence[DeviceGroup], cluster: Cluster, devices: dict[str, list[int]], found: Nodes
) -> None:
    result = placed(*groups, cluster=cluster)
    assert {name: numbers(result, name) for name in devices} == devices
    assert result.cluster == found


def test_nodes_of_a_group_on_cpu_by_number_and_by_pool() -> None:
    result = placed(DeviceGroup("d", 3, "cpu", nodes=(1, "small")), cluster=POOLS)
    assert result.nodes == {"d": ((1, 2), (3, 5))} and not result.beyond


@pytest.mark.parametrize(
    ("groups", "cluster", "beyond"),
    [
        ((cuda_group("a", 3), cuda_group("b", 2)), Cluster(1, 4), {"b": 4}),
        (ONE_EIGHT, Cluster(2, (6, 3)), {"b": 9}),
        (ONE_EIGHT, Cluster(2, {"cuda": (6, 3)}), {"b": 9}),
        (ONE_EIGHT, Cluster(0, (6, 3, 4, 1)), {}),
        (TWO_FOUR, Cluster(2, 3), {}),
        ((cuda_group("a", 12, nodes=("small",)),), POOLS, {}),
    ],
)
def test_what_the_cluster_lacks_is_named(
    groups: Sequence[DeviceGroup], cluster: Cluster, beyond: dict[str, int]
) -> None:
    assert dict(placed(*groups, cluster=cluster).beyond) == beyond


def test_a_large_job_is_placed_by_runs() -> None:
    result = placed(cuda_group("a", 50_000), cuda_group("b", 50_000, 4), cluster=Cluster(12_500, 8))
    assert result.devices == {"a": ((0, 50_000),), "b": ((50_000, 100_000),)} and not result.beyond
    rest = placed(cuda_group("a", 75_000, 3), cuda_group("b", 25_000), cluster=Cluster(12_500, 8))
    assert not rest.beyond and (rest.devices["b"][0], rest.devices["b"][-1]) == ((6, 8), (99_998, 100_000))


def test_each_device_type_is_numbered_from_0() -> None:
    groups = (
        cuda_group("a", 3),
        DeviceGroup("b", 2, "npu"),
        cuda_group("c", 2),
        DeviceGroup("d", (1, 5), "npu"),
    )
    result = placed(*groups)
    assert [numbers(result, name) for name in "abcd"] == [[0, 1, 2], [0, 2], [3, 4], [1, 5]]
    assert result.cluster == Nodes.of(1, cuda=5, npu=6)
    assert placed(*groups, cluster=Cluster(2, 4)).cluster == Nodes.of(2, cuda=4, npu=4)
    assert placed(*groups, cluster=Cluster(0, {"npu": (2, 4)})).cluster == Nodes.of(2, cuda=3, npu=[2, 4])
    both = placed(*groups[:1], cluster=Cluster(0, {"cuda": 2, "npu": 4}))
    assert both.cluster == Nodes.of(2, cuda=2, npu=4)


# What rules ask

RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=4)
NODES = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)


def runs_of(drawn: list[tuple[int, int]], total: int) -> DeviceRanges:
    """Draws runs in any order that neither overlap nor touch."""
    taken: set[int] = set()
    found: list[tuple[int, int]] = []
    for start, count in drawn:
        stop = min(start + count, total)
        if start < stop and taken.isdisjoint(range(start - 1, stop + 1)):
            found.append((start, stop))
            taken.update(range(start, stop))
    return tuple(found)


@given(NODES, RUNS, st.integers(1, 4))
def test_questions_about_runs_agree_with_lists(
    sizes: list[int], drawn: list[tuple[int, int]], each: int
) -> None:
    cluster = Nodes.of(len(sizes), cuda=sizes)
    homes = [node for node, size in enumerate(sizes) for _ in range(size)]
    runs = runs_of(drawn, len(homes))
    devices = [device for start, stop in runs for device in range(start, stop)]
    here = [homes[device] for device in devices]
    assert most_per_node(runs, cluster, "cuda") == max((here.count(node) for node in here), default=0)
    workers = [devices[first : first + each] for first in range(0, len(devices), each)]
    wrong = [
        rank
        for rank, mine in enumerate(workers)
        if len(mine) < each
        or mine != list(range(mine[0], mine[0] + each))
        or homes[mine[0]] != homes[mine[-1]]
    ]
    assert first_split_worker(runs, each, cluster, "cuda") == (wrong[0] if wrong else None)


@given(RUNS, RUNS)
def test_what_two_groups_share_agrees_with_lists(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    mine, theirs = runs_of(one, 100), runs_of(other, 100)
    both = {device for run in mine for device in range(*run)} & {
        device for run in theirs for device in range(*run)
    }
    assert first_common_device(mine, theirs) == min(both, default=None)


GROUPS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 3])), min_size=1, max_size=5)


@given(GROUPS, st.integers(0, 8), st.integers(0, 3))
def test_groups_are_disjoint_and_workers_whole(
    sizes: list[tuple[int, int]], per_node: int, nodes: int
) -> None:
    groups = [DeviceGroup(f"g{i}", workers * each, "cuda", each) for i, (workers, each) in enumerate(sizes)]
    result = placed(*groups, cluster=Cluster(nodes, per_node))
    taken = [number for group in groups for number in numbers(result, group.name)]
    assert len(taken) == len(set(taken)) == sum(group.devices for group in groups)
    if per_node == 0 or nodes == 0:
        assert not result.beyond
    node = result.cluster.devices_on("cuda", 0)
    for group in groups:
        mine, each = numbers(result, group.name), group.gpus_per_worker
        for worker in range(group.workers if each <= node else 0):
            block = mine[worker * each : (worker + 1) * each]
            assert block == list(range(block[0], block[0] + each)) and block[0] // node == block[-1] // node


@given(GROUPS, st.integers(1, 4))
def test_one_device_less_on_each_node_is_too_few(sizes: list[tuple[int, int]], nodes: int) -> None:
    groups = {
        f"g{i}": DeviceGroup(f"g{i}", workers * each, "cuda", each) for i, (workers, each) in enumerate(sizes)
    }
    each = least_per_node(groups, "cuda", nodes)
    assert not allocate(groups, Cluster(nodes, each)).beyond
    if each > max(group.gpus_per_worker for group in groups.values()):
        assert allocate(groups, Cluster(nodes, each - 1)).beyond


# Neighbouring ranks that are kept together


def test_neighbours_begin_on_the_next_node_where_there_are_enough() -> None:
    def of(cluster: Cluster, **ranks: int) -> dict[str, list[int]]:
        result = allocate(
            {name: cuda_group(name, count) for name, count in ranks.items()}, cluster, {"b": (8,)}
        )
        return {name: numbers(result, name) for name in ranks}

    three = {"a": [*range(6)], "b": [*range(8, 16)], "c": [6, 7]}
    assert of(Cluster(3, 8), a=6, b=8, c=2) == of(Cluster(0, 8), a=6, b=8, c=2) == three
    assert of(Cluster(0, 8), a=6, b=16, c=2)["b"] == [*range(8, 24)]
    for full in (Cluster(1, 14), Cluster(2, 7)):
        assert of(full, a=6, b=8)["b"] == [*range(6, 14)]


@given(st.data())
@settings(max_examples=examples(60, 2000))
def test_neighbours_are_on_one_node_where_the_nodes_hold_them(data: st.DataObject) -> None:
    """A single group on free nodes: each set is on one node if the nodes hold so many sets."""
    sizes = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any))
    ranks, sets = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 4))
    group = DeviceGroup("a", ranks * sets, "cuda")
    result = allocate({"a": group}, Cluster(0, tuple(sizes)), {"a": (ranks,)})
    devices = [device for start, stop in result.devices["a"] for device in range(start, stop)]
    assert len(devices) == len(set(devices)) == group.devices
    nodes = [result.cluster.node_of("cuda", device) for device in devices if device < sum(sizes)]
    if len(nodes) < group.devices:
        assert result.beyond and sum(sizes) < group.devices
        return
    if sum(size // ranks for size in sizes) >= sets:
        assert all(len({*nodes[at : at + ranks]}) == 1 for at in range(0, len(nodes), ranks))
    else:
        assert devices == list(range(group.devices))
