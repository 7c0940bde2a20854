"""Devices and clusters: disjoint by default, exactly as listed, and the least that holds the groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.recipe.model import Cluster, DeviceGroup, Recipe
from meshctl.recipe.placement import Placed, place


def placed(*groups: DeviceGroup, cluster: Cluster = Cluster()) -> Placed:
    return place(Recipe(cluster=cluster, groups={group.name: group for group in groups}))


def numbers(result: Placed, group: str) -> list[int]:
    return [number for start, stop in result.devices[group] for number in range(start, stop)]


def test_a_count_takes_the_next_free_devices() -> None:
    result = placed(
        DeviceGroup("a", 4, "cuda"), DeviceGroup("b", (0, 1, 5), "cuda"), DeviceGroup("c", 2, "cuda"), DeviceGroup("d", 3, "cpu")
    )
    assert numbers(result, "a") == [2, 3, 4, 6]
    assert numbers(result, "c") == [7, 8]
    assert result.devices["d"] == ()
    assert result.cluster == Cluster(1, 9)


def test_a_worker_keeps_to_one_node() -> None:
    one, two = DeviceGroup("a", 1, "cuda"), DeviceGroup("b", 4, "cuda", gpus_per_worker=2)
    result = placed(one, two, cluster=Cluster(2, 4))
    assert numbers(result, "b") == [1, 2, 4, 5]
    assert placed(one, two, cluster=Cluster(2)).cluster == Cluster(2, 3)
    assert placed(one, two).cluster == Cluster(1, 5)


def test_colocated_groups_share() -> None:
    groups = (DeviceGroup("c", 1, "cuda", colocate="b"), DeviceGroup("b", 2, "cuda", colocate="a"), DeviceGroup("a", (3, 4, 5), "cuda"))
    result = placed(*groups)
    assert [numbers(result, name) for name in "abc"] == [[3, 4, 5], [3, 4], [3]]


def test_what_the_cluster_lacks_is_named() -> None:
    result = placed(DeviceGroup("a", 3, "cuda"), DeviceGroup("b", 2, "cuda"), cluster=Cluster(1, 4))
    assert dict(result.beyond) == {"b": 4}


@pytest.mark.parametrize(
    ("cluster", "expected"), [(Cluster(), (1, 10)), (Cluster(2), (2, 5)), (Cluster(0, 4), (3, 4)), (Cluster(0, 16), (1, 16))]
)
def test_what_is_left_out_is_the_least(cluster: Cluster, expected: tuple[int, int]) -> None:
    assert placed(DeviceGroup("a", 10, "cuda"), cluster=cluster).cluster == Cluster(*expected)


def test_a_job_on_cpu_has_no_devices() -> None:
    assert placed(DeviceGroup("a", 3, "cpu")).cluster == Cluster(1, 0)
    assert placed(DeviceGroup("a", 3, "cpu"), cluster=Cluster(2)).cluster == Cluster(2, 0)


def test_a_large_job_is_placed_by_runs() -> None:
    result = placed(DeviceGroup("a", 50_000, "cuda"), DeviceGroup("b", 50_000, "cuda", gpus_per_worker=4), cluster=Cluster(12_500, 8))
    assert result.devices == {"a": ((0, 50_000),), "b": ((50_000, 100_000),)} and not result.beyond


GROUPS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 3])), min_size=1, max_size=5)


@given(GROUPS, st.integers(0, 8), st.integers(0, 3))
def test_groups_are_disjoint_and_workers_whole(sizes: list[tuple[int, int]], per_node: int, nodes: int) -> None:
    groups = [DeviceGroup(f"g{i}", workers * each, "cuda", each) for i, (workers, each) in enumerate(sizes)]
    result = placed(*groups, cluster=Cluster(nodes, per_node))
    taken = [number for group in groups for number in numbers(result, group.name)]
    assert len(taken) == len(set(taken)) == sum(group.devices for group in groups)
    if per_node == 0 or nodes == 0:
        assert not result.beyond
    node = result.cluster.devices_per_node
    for group in groups:
        mine, each = numbers(result, group.name), group.gpus_per_worker
        for worker in range(group.workers if each <= node else 0):
            block = mine[worker * each : (worker + 1) * each]
            assert block == list(range(block[0], block[0] + each)) and block[0] // node == block[-1] // node
