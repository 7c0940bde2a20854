"""Placement of ranks on nodes: runs, devices by number, and process groups that span nodes. `tests/plan/test_model.py`
compares look-ups with lists of all ranks."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Group, Plan, Run
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.placement import NodeRun, node_runs, span_nodes
from tests.examples import examples


def on(device_type: str, *runs: tuple[int, int], per_worker: int = 1) -> Group:
    return Group(
        "train", device_type, sum(stop - start for start, stop in runs) // per_worker, 0, runs, per_worker
    )


def test_a_row_of_devices_is_three_stretches() -> None:
    assert node_runs(Cluster.of(12_501, cuda=8), "cuda", 100_000, ((3, 100_003),)) == (
        NodeRun(0, 5, 0, 5, 3),
        NodeRun(5, 99_992, 1, 8, 0),
        NodeRun(99_997, 3, 12_500, 3, 0),
    )
    assert node_runs(Cluster.of(12_500, cuda=8), "cuda", 100_000, ((0, 100_000),)) == (
        NodeRun(0, 100_000, 0, 8, 0),
    )


def test_nodes_that_come_back() -> None:
    plan = Plan(
        "p", 0, Cluster.of(3, cuda=4), (on("cuda", (4, 6), (0, 2), (6, 7), (2, 3)),), (), (), (), Run()
    )
    with pytest.raises(ValueError, match="a worker would have devices of more than one node"):
        node_runs(Cluster.of(2, cuda=3), "cuda", 3, ((0, 6),), 2)
    assert [plan.node_of("train", rank) for rank in range(6)] == [1, 1, 0, 0, 1, 0]
    assert [plan.local_rank("train", rank) for rank in range(6)] == [0, 1, 0, 1, 2, 2]
    assert [worker.rank for worker in plan.workers("train", 1)] == [0, 1, 4]
    assert list(plan.workers("train", 2)) == [] and plan.nodes_of("train") == (0, 1)


def test_devices_are_numbered_by_type() -> None:
    cluster = Cluster.of(3, cuda=[8, 8, 4], npu=2)
    assert cluster == Cluster(3, {"cuda": ((2, 8), (1, 4)), "npu": ((3, 2),)})
    assert (cluster.total("cuda"), cluster.total("npu"), cluster.total("mps")) == (20, 6, 0)
    assert (cluster.node_of("cuda", 17), cluster.number_on_node("cuda", 17)) == (2, 1)
    assert (cluster.node_of("npu", 4), cluster.number_on_node("npu", 4)) == (2, 0)
    assert [cluster.devices_on(kind, 2) for kind in ("cuda", "npu", "mps")] == [4, 2, 0]
    with pytest.raises(ValueError, match="device 20 does not exist; the devices are 0 to 19"):
        cluster.node_of("cuda", 20)
    with pytest.raises(ValueError, match="the cluster has no devices"):
        cluster.node_of("mps", 0)


# Process groups

ASKED = (*DIMS, "data", "ulysses", "ep", "etp", "ep_fsdp")


@st.composite
def meshes(draw: st.DrawFn, ranks: int) -> DeviceMesh:
    left, sizes = ranks, dict[str, int]()
    for dim in ("pp", "fsdp", "cp", "tp"):
        sizes[dim] = draw(st.sampled_from([size for size in range(1, left + 1) if left % size == 0]))
        left //= sizes[dim]
    data, stage = left * sizes["fsdp"], ranks // sizes["pp"]
    ulysses = draw(st.sampled_from([size for size in range(1, data + 1) if data % size == 0]))
    ep = draw(st.sampled_from([size for size in range(1, stage + 1) if stage % size == 0]))
    etp = draw(st.sampled_from([size for size in range(1, stage // ep + 1) if stage // ep % size == 0]))
    return DeviceMesh.from_sizes(
        world_size=ranks,
        ulysses_size=ulysses,
        ep_size=ep,
        etp_size=etp,
        order=draw(st.one_of(st.just(DIMS), st.permutations(DIMS))),
        **{f"{dim}_size": size for dim, size in sizes.items()},
    )


def listed(nodes: list[int], mesh: DeviceMesh, dim: str) -> str:
    leave = [len({nodes[rank] for rank in ranks}) > 1 for ranks in mesh.process_groups(dim)]
    return "all" if all(leave) else "some" if any(leave) else "inside"


@st.composite
def spread_out(draw: st.DrawFn) -> tuple[tuple[NodeRun, ...], list[int]]:
    """Draws runs in any order of nodes, mostly ascending, and the node of each rank."""
    found: list[NodeRun] = []
    rank, node = 0, draw(st.integers(0, 2))
    for _ in range(draw(st.integers(1, 4))):
        each, nodes = draw(st.sampled_from([1, 2, 3, 4, 6, 8])), draw(st.integers(1, 4))
        found.append(NodeRun(rank, each * nodes, node, each, draw(st.sampled_from([0, 2]))))
        rank += each * nodes
        node = max(0, node + nodes + draw(st.sampled_from([-1, -1, 0, 0, 0, 1, -3])))
    homes = [stretch.first_node + at // stretch.each for stretch in found for at in range(stretch.ranks)]
    return tuple(found), homes


@given(spread_out(), st.data())
@settings(max_examples=examples(40, 400))
def test_span_nodes_agrees_with_a_loop_over_all_groups(
    spread: tuple[tuple[NodeRun, ...], list[int]], data: st.DataObject
) -> None:
    found, homes = spread
    mesh = data.draw(meshes(len(homes)))
    for dim in ASKED:
        assert span_nodes(found, mesh, dim) == listed(homes, mesh, dim), (dim, mesh)


def test_a_large_world_is_not_listed_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("all groups are listed")

    mesh = DeviceMesh.from_sizes(
        pp_size=10, dp_size=25, fsdp_size=25, cp_size=2, tp_size=8, ulysses_size=5, ep_size=5, etp_size=4
    )
    monkeypatch.setattr(DeviceMesh, "process_groups", refuse)
    assert prod(mesh.shape) == 100_000
    even = node_runs(Cluster.of(12_500, cuda=8), "cuda", 100_000, ((0, 100_000),))
    found = {dim: span_nodes(even, mesh, dim) for dim in ASKED}
    assert found == dict.fromkeys(ASKED, "all") | {"tp": "inside", "etp": "inside"}
    moved = node_runs(Cluster.of(12_501, cuda=8), "cuda", 100_000, ((3, 100_003),))
    assert [span_nodes(moved, mesh, dim) for dim in ("tp", "etp", "pp")] == ["all", "some", "all"]
    moved = node_runs(Cluster.of(12_501, cuda=8), "cuda", 100_000, ((4, 100_004),))
    assert span_nodes(moved, mesh, "etp") == "inside"
