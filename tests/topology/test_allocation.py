"""Allocation of devices: disjoint by default, exactly as listed, and on the smallest cluster that is
enough."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.recipe.model import Cluster, DeviceGroup, NodePool
from meshctl.topology.allocation import Allocation, allocate, least_per_node
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


def test_a_count_allocates_the_next_free_devices() -> None:
    result = placed(
        DeviceGroup("a", 4, "cuda"),
        DeviceGroup("b", (0, 1, 5), "cuda"),
        DeviceGroup("c", 2, "cuda"),
        DeviceGroup("d", 3, "cpu"),
    )
    assert numbers(result, "a") == [2, 3, 4, 6]
    assert numbers(result, "c") == [7, 8]
    assert result.devices["d"] == ()
    assert result.cluster == cuda(1, 9)


def test_a_worker_keeps_to_one_node() -> None:
    one, two = DeviceGroup("a", 1, "cuda"), DeviceGroup("b", 4, "cuda", gpus_per_worker=2)
    result = placed(one, two, cluster=Cluster(2, 4))
    assert numbers(result, "b") == [1, 2, 4, 5]
    assert placed(one, two, cluster=Cluster(2)).cluster == cuda(2, 3)
    assert placed(one, two).cluster == cuda(1, 5)


def test_colocated_groups_share() -> None:
    groups = (
        DeviceGroup("c", 1, "cuda", colocate="b"),
        DeviceGroup("b", 2, "cuda", colocate="a"),
        DeviceGroup("a", (3, 4, 5), "cuda"),
    )
    result = placed(*groups)
    assert [numbers(result, name) for name in "abc"] == [[3, 4, 5], [3, 4], [3]]


def test_a_list_may_name_the_shared_devices_of_another_group() -> None:
    result = placed(
        DeviceGroup("a", 2, "cuda"),
        DeviceGroup("b", 4, "cuda"),
        DeviceGroup("c", (0, 3), "cuda", colocate="b"),
    )
    assert [numbers(result, name) for name in "abc"] == [[1, 2], [0, 3, 4, 5], [0, 3]]


def test_what_the_cluster_lacks_is_named() -> None:
    result = placed(DeviceGroup("a", 3, "cuda"), DeviceGroup("b", 2, "cuda"), cluster=Cluster(1, 4))
    assert dict(result.beyond) == {"b": 4}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [(Cluster(), (1, 10)), (Cluster(2), (2, 5)), (Cluster(0, 4), (3, 4)), (Cluster(0, 16), (1, 16))],
)
def test_what_is_left_out_is_the_least(cluster: Cluster, expected: tuple[int, int]) -> None:
    assert placed(DeviceGroup("a", 10, "cuda"), cluster=cluster).cluster == cuda(*expected)


def test_a_job_on_cpu_has_no_devices() -> None:
    assert placed(DeviceGroup("a", 3, "cpu")).cluster == Nodes(1)
    assert placed(DeviceGroup("a", 3, "cpu"), cluster=Cluster(2, 8)).cluster == Nodes(2)
    assert placed(DeviceGroup("a", 3, "cpu"), cluster=Cluster(0, (8, 4))).cluster == Nodes(2)


def test_a_large_job_is_placed_by_runs() -> None:
    result = placed(
        DeviceGroup("a", 50_000, "cuda"),
        DeviceGroup("b", 50_000, "cuda", gpus_per_worker=4),
        cluster=Cluster(12_500, 8),
    )
    assert result.devices == {"a": ((0, 50_000),), "b": ((50_000, 100_000),)} and not result.beyond


def test_each_device_type_is_numbered_from_0() -> None:
    groups = (
        DeviceGroup("a", 3, "cuda"),
        DeviceGroup("b", 2, "npu"),
        DeviceGroup("c", 2, "cuda"),
        DeviceGroup("d", (1, 5), "npu"),
    )
    result = placed(*groups)
    assert {name: numbers(result, name) for name in "abcd"} == {
        "a": [0, 1, 2],
        "b": [0, 2],
        "c": [3, 4],
        "d": [1, 5],
    }
    assert result.cluster == Nodes.of(1, cuda=5, npu=6)
    assert placed(*groups, cluster=Cluster(2, 4)).cluster == Nodes.of(2, cuda=4, npu=4)
    assert placed(*groups, cluster=Cluster(0, {"npu": (2, 4)})).cluster == Nodes.of(2, cuda=3, npu=[2, 4])
    assert placed(*groups[:1], cluster=Cluster(0, {"cuda": 2, "npu": 4})).cluster == Nodes.of(
        2, cuda=2, npu=4
    )


def test_nodes_may_differ() -> None:
    one, two = DeviceGroup("a", 1, "cuda"), DeviceGroup("b", 8, "cuda", gpus_per_worker=4)
    result = placed(one, two, cluster=Cluster(0, (6, 3, 4, 1)))
    assert result.cluster == Nodes.of(4, cuda=[6, 3, 4, 1]) and not result.beyond
    assert numbers(result, "b") == [1, 2, 3, 4, 9, 10, 11, 12]
    assert dict(placed(one, two, cluster=Cluster(2, (6, 3))).beyond) == {"b": 9}
    assert dict(placed(one, two, cluster=Cluster(2, {"cuda": (6, 3)})).beyond) == {"b": 9}


def test_a_large_job_whose_workers_leave_a_rest_is_placed_too() -> None:
    result = placed(
        DeviceGroup("a", 75_000, "cuda", 3), DeviceGroup("b", 25_000, "cuda"), cluster=Cluster(12_500, 8)
    )
    assert (
        not result.beyond
        and result.devices["b"][0] == (6, 8)
        and result.devices["b"][-1] == (99_998, 100_000)
    )


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


# Nodes, and neighbouring ranks that are kept together

POOLS = Cluster(5, nodes_by_pool=(NodePool("gpu", 3, 8), NodePool("small", 2, {"cuda": 4})))


def test_a_group_with_nodes_receives_their_devices_before_others() -> None:
    groups = (
        DeviceGroup("a", 6, "cuda"),
        DeviceGroup("b", 4, "cuda", nodes=("small",)),
        DeviceGroup("c", 8, "cuda", nodes=(0,)),
        DeviceGroup("d", 3, "cpu", nodes=(1, "small")),
    )
    result = placed(*groups, cluster=POOLS)
    assert [result.devices[name] for name in "abcd"] == [((8, 14),), ((24, 28),), ((0, 8),), ()]
    assert result.nodes == {"d": ((1, 2), (3, 5))} and not result.beyond
    assert result.cluster == Nodes(5, {"cuda": ((3, 8), (2, 4))}, (("gpu", 3), ("small", 2)))


def test_a_group_whose_nodes_are_full_receives_what_is_free() -> None:
    result = placed(DeviceGroup("a", 12, "cuda", nodes=("small",)), cluster=POOLS)
    assert result.devices == {"a": ((24, 32),)} and not result.beyond


def test_the_least_cluster_has_the_named_nodes() -> None:
    groups = (DeviceGroup("a", 4, "cuda", nodes=(2,)), DeviceGroup("b", 2, "cuda"))
    assert placed(*groups).cluster == cuda(3, 4)
    assert placed(DeviceGroup("a", 4, "cuda", nodes=("gpu",))).cluster == cuda(1, 4)


def test_neighbours_begin_on_the_next_node_where_there_are_enough() -> None:
    groups = {
        "a": DeviceGroup("a", 6, "cuda"),
        "b": DeviceGroup("b", 8, "cuda"),
        "c": DeviceGroup("c", 2, "cuda"),
    }
    three = allocate(groups, Cluster(3, 8), {"b": (8,)})
    assert dict(three.devices) == {"a": ((0, 6),), "b": ((8, 16),), "c": ((6, 8),)}
    assert allocate(groups, Cluster(0, 8), {"b": (8,)}).devices == three.devices
    exact = {**groups, "b": DeviceGroup("b", 16, "cuda"), "c": DeviceGroup("c", 2, "cuda")}
    assert allocate(exact, Cluster(0, 8), {"b": (8,)}).devices["b"] == ((8, 24),)
    full = {"a": DeviceGroup("a", 6, "cuda"), "b": DeviceGroup("b", 8, "cuda")}
    assert allocate(full, Cluster(1, 14), {"b": (8,)}).devices["b"] == ((6, 14),)
    assert allocate(full, Cluster(2, 7), {"b": (8,)}).devices["b"] == ((6, 14),)


@given(st.data())
@settings(max_examples=examples(150, 2000))
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


# Recipes in which the next free devices are not enough


def test_groups_that_fit_in_another_order_are_placed() -> None:
    result = placed(
        DeviceGroup("a", 2, "cuda"), DeviceGroup("b", 4, "cuda", gpus_per_worker=2), cluster=Cluster(2, 3)
    )
    assert dict(result.devices) == {"a": ((2, 3), (5, 6)), "b": ((0, 2), (3, 5))} and not result.beyond
    assert placed(
        DeviceGroup("a", 2, "cuda"), DeviceGroup("b", 4, "cuda", gpus_per_worker=2), cluster=Cluster(0, 3)
    ).cluster == cuda(2, 3)
    result = placed(
        DeviceGroup("a", 2, "cuda", nodes=(0, 1)),
        DeviceGroup("b", 2, "cuda", nodes=(0,)),
        cluster=Cluster(2, 2),
    )
    assert dict(result.devices) == {"a": ((2, 4),), "b": ((0, 2),)}
