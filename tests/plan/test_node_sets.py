"""The sets of equal nodes, against every node by itself."""

import pytest
from hypothesis import given, settings

from meshctl.engines.engine import groups_on, nodes_of
from meshctl.plan.model import Cluster, Group, Plan, Run
from meshctl.plan.node_sets import NodeSet, node_sets, number_of
from tests.examples import examples
from tests.plan.jobs import Sizes, jobs


def plan(cluster: Cluster, *groups: Group) -> Plan:
    return Plan("p", 0, cluster, groups, (), (), (), Run())


def test_nodes_with_the_same_groups_and_devices_are_one_set() -> None:
    made = plan(
        Cluster.of(7, cuda=[8, 8, 8, 8, 4, 8, 0]),
        Group("train", "cuda", 24, 0, ((0, 16), (24, 28), (36, 40))),
        Group("rollout", "cuda", 4, 24, ((16, 24),), gpus_per_worker=2),
        Group("judge", "cpu", 6, 28),
    )
    assert node_sets(made) == (
        NodeSet(((0, 2),), ("train", "judge"), {"cuda": 8}),
        NodeSet(((2, 3),), ("rollout", "judge"), {"cuda": 8}),
        NodeSet(((3, 4), (5, 6)), ("train", "judge"), {"cuda": 4}),
        NodeSet(((4, 5),), ("judge",), {}),
    )


def test_a_set_does_not_grow_with_its_nodes() -> None:
    many = plan(Cluster.of(500_000, cuda=8), Group("train", "cuda", 4_000_000, 0, ((0, 4_000_000),)))
    assert node_sets(many) == (NodeSet(((0, 500_000),), ("train",), {"cuda": 8}),)


@given(jobs())
@settings(max_examples=examples(20, 500))
def test_a_set_is_what_each_of_its_nodes_hosts(job: tuple[Plan, Sizes]) -> None:
    plan, _ = job
    found = node_sets(plan)
    assert [alike.nodes[0] for alike in found] == sorted(alike.nodes[0] for alike in found)
    numbers = [node for alike in found for node in alike.numbers()]
    assert sorted(numbers) == [*nodes_of(plan)]
    assert len(numbers) == len(set(numbers)) == sum(alike.count for alike in found)
    assert len(found) == len({(alike.groups, tuple(alike.devices.items())) for alike in found})
    for alike in found:
        for node in alike.numbers():
            here = [worker for group in plan.groups for worker in plan.workers(group.name, node)]
            hosted = {worker.group for worker in here}
            assert alike.groups == groups_on(plan, node)
            assert alike.groups == tuple(group.name for group in plan.groups if group.name in hosted)
            needed: dict[str, int] = {}
            for worker in here:
                kind = plan.group(worker.group).device_type
                for device in worker.devices:
                    number = plan.cluster.number_on_node(kind, device)
                    needed[kind] = max(number + 1, needed.get(kind, 0))
            assert alike.devices == needed
    without = set(range(plan.cluster.nodes)) - set(numbers)
    assert not any(groups_on(plan, node) for node in without)


def test_a_node_by_its_place_in_a_set() -> None:
    made = plan(
        Cluster.of(4, cuda=[0, 8, 8, 0]),
        Group("train", "cuda", 16, 0, ((0, 16),)),
        Group("judge", "cpu", 4, 16),
    )
    assert [number_of(text, made) for text in ("3", "0.0", "0.1", "1.1")] == [3, 0, 3, 2]
    for text in ("0.2", "2.0", "one", "-1", "0."):
        with pytest.raises(ValueError, match="--node"):
            number_of(text, made)
