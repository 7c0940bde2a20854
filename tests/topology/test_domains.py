"""Domains: every answer against a list of all nodes."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Group
from meshctl.topology.cluster import Cluster, devices_by_node
from meshctl.topology.domains import by_domain, domain_runs, domains_of
from meshctl.topology.placement import GroupPlacement, node_runs
from tests.examples import examples

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def with_domains(cluster: Cluster, sizes: list[int]) -> Cluster:
    domains = devices_by_node(len(sizes), sizes)
    return Cluster(cluster.nodes, cluster.devices_per_node, domains={"nvlink": domains})


def test_the_last_domain_may_be_smaller() -> None:
    assert domains_of(8, 4) == ((2, 4),)
    assert domains_of(9, 4) == ((2, 4), (1, 1))
    assert domains_of(3, 4) == ((1, 3),)


def test_a_domain_has_the_devices_of_its_nodes() -> None:
    cluster = with_domains(Cluster.of(7, cuda=[8, 8, 8, 8, 4, 4, 0], npu=2), [2, 2, 2, 1])
    assert by_domain(cluster, "nvlink") == Cluster(
        4, {"cuda": ((2, 16), (1, 8), (1, 0)), "npu": ((3, 4), (1, 2))}
    )


def test_nodes_outside_of_domains_are_alone() -> None:
    cluster = Cluster(5, {"cuda": ((5, 8),)}, domains={"rack": ((1, 3),)})
    assert by_domain(cluster, "rack") == Cluster(3, {"cuda": ((1, 24), (2, 8))})


def test_many_nodes_are_never_listed() -> None:
    cluster = Cluster(1_000_000, {"cuda": ((1_000_000, 8),)}, domains={"nvlink": domains_of(1_000_000, 18)})
    assert by_domain(cluster, "nvlink") == Cluster(55_556, {"cuda": ((55_555, 144), (1, 80))})
    runs = node_runs(Group("train", "cuda", 7_999_996, 0, ((4, 8_000_000),)), cluster)
    found = domain_runs(runs, cluster, "nvlink")
    assert [(run.first_rank, run.first_node, run.nodes, run.each) for run in found] == [
        (0, 0, 1, 4),
        (4, 0, 1, 136),
        (140, 1, 55_554, 144),
        (7_999_916, 55_555, 1, 80),
    ]


@given(SIZES, st.data())
@settings(max_examples=examples(100, 1000))
def test_ranks_are_in_the_domains_of_their_nodes(sizes: list[int], data: st.DataObject) -> None:
    nodes = sum(sizes)
    per_node = data.draw(st.lists(st.integers(0, 4), min_size=nodes, max_size=nodes).filter(any))
    cluster = with_domains(Cluster.of(nodes, cuda=per_node), sizes)
    of_node = [domain for domain, size in enumerate(sizes) for _ in range(size)]
    assert [by_domain(cluster, "nvlink").devices_on("cuda", domain) for domain in range(len(sizes))] == [
        sum(per_node[stop - size : stop]) for size, stop in zip(sizes, accumulate(sizes), strict=True)
    ]
    start = data.draw(st.integers(0, sum(per_node) - 1))
    stop = data.draw(st.integers(start + 1, sum(per_node)))
    cpu_nodes = data.draw(st.sampled_from([(), ((0, 1),), ((nodes - 1, nodes),)]))
    for group in (
        Group("train", "cuda", stop - start, 0, ((start, stop),)),
        Group("judge", "cpu", data.draw(st.integers(1, 9)), 0, nodes=cpu_nodes),
    ):
        runs = node_runs(group, cluster)
        placed, found = GroupPlacement(runs), GroupPlacement(domain_runs(runs, cluster, "nvlink"))
        assert found.ranks == placed.ranks == group.workers
        for rank in range(group.workers):
            assert found.locate(rank).node == of_node[placed.locate(rank).node]


@given(st.integers(1, 20), st.sets(st.integers(0, 9), min_size=1))
@settings(max_examples=examples(100, 1000))
def test_cpu_workers_are_spread_over_the_named_nodes(workers: int, nodes: set[int]) -> None:
    ranges = tuple((node, node + 1) for node in sorted(nodes))
    placed = GroupPlacement(node_runs(Group("judge", "cpu", workers, 0, nodes=ranges), Cluster(10)))
    found = [placed.locate(rank).node for rank in range(workers)]
    each, more = divmod(workers, len(nodes))
    assert found == [node for index, node in enumerate(sorted(nodes)) for _ in range(each + (index < more))]
