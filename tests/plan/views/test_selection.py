"""One part of a plan in detail: it agrees with meshes, placement and routes, and its cost does not depend on
the size of the plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Cluster, Component, Group, Input, Plan, Run, Stage
from meshctl.plan.views.rank import RankRoute, RankZoom
from meshctl.plan.views.selection import Selection, of_dim, of_node, of_rank, select
from meshctl.plan.views.topology import ZoomError, topology
from meshctl.topology.mesh import DIMS, DeviceMesh, even_split
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Dispatch, Route
from meshctl.topology.samples import SampleTable
from tests.examples import examples
from tests.plan.jobs import DeviceType, Sizes, jobs, naive, of_types
from tests.plan.views.test_topology import plan_of
from tests.topology.mesh_strategies import uneven_meshes as meshes
from tests.topology.meshes import producer_ranks, samples_by_rank
from tests.view.pictures import plans

JOINING = [name for name, mode in COLLECT.items() if mode.join in ("samples", "first")]


@st.composite
def routed(draw: st.DrawFn, collects: Sequence[str] = JOINING) -> Plan:
    """A source and a stage that takes its batch, on two meshes, in every mode."""
    producer, consumer = draw(meshes()), draw(meshes())
    collect = draw(st.sampled_from(collects))
    called = draw(st.sampled_from(sorted(EXECUTE)))
    execute = draw(st.sampled_from(sorted(EXECUTE)))
    dispatch = Dispatch(draw(st.sampled_from(sorted(DISPATCH))), allow_empty=True)
    groups = (
        Group("a", "cpu", producer.world_size, 0),
        Group("b", "cpu", consumer.world_size, producer.world_size),
    )
    stages = (
        Stage("s", "call", "x", "next", execute=called, collect=collect, samples=draw(st.integers(1, 300))),
        Stage("t", "call", "y", "take", (Input(("s",), "", dispatch),), execute=execute),
    )
    routes = (Route("s -> t", "s", "t", "", collect=collect, dispatch=dispatch),)
    components = (Component("x", "m.X", "a", producer), Component("y", "m.Y", "b", consumer))
    return Plan("p", 0, Cluster(draw(st.integers(1, 3))), groups, components, stages, routes, Run())


def spans(route: RankRoute) -> set[tuple[int, int]]:
    return {each.samples for each in route.exchanges if each.samples and each.samples[0] < each.samples[1]}


def runs(numbers: list[int]) -> set[tuple[int, int]]:
    """Returns the runs of consecutive numbers in ascending ones."""
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    return {(numbers[0], numbers[-1] + 1)}


@settings(max_examples=examples(20, 1500))
@given(routed())
def test_a_rank_receives_the_samples_that_the_route_assigns_to_it(plan: Plan) -> None:
    (route,), source, target = plan.routes, plan.stage("s"), plan.stage("t")
    producer, consumer = plan.component("x").mesh, plan.component("y").mesh
    ranks = producer_ranks(producer, source.collect, source.execute)
    held = [even_split(source.samples, len(ranks), number) for number in range(len(ranks))]
    table = SampleTable(tuple(tuple((n,) for n in mine) for mine in held))
    received: dict[int, dict[int, list[int]]] = {rank: {} for rank in range(consumer.world_size)}
    for rank, samples in samples_by_rank(target.execute, route.dispatch, consumer, table).items():
        for number, index in samples:
            received[rank].setdefault(ranks[number], []).append(held[number][index])
    drawn = topology(plan)
    for rank, mine in received.items():
        check_consumer(of_rank(plan, drawn, "b", rank), mine)
    for rank in range(producer.world_size):
        zoom = of_rank(plan, drawn, "a", rank)
        assert zoom.stages[0].called == (rank in ranks) == bool(zoom.routes)
        if rank in ranks:
            assert (
                zoom.stages[0].samples == (held[ranks.index(rank)].start, held[ranks.index(rank)].stop)
                or not held[ranks.index(rank)]
            )
            check_producer(
                zoom.routes[0],
                {consuming: mine[rank] for consuming, mine in received.items() if rank in mine},
            )


TYPE: st.SearchStrategy[DeviceType] = st.sampled_from(["cuda", "cuda", "npu", "cpu"])


@settings(max_examples=examples(20, 1000))
@given(routed(), st.tuples(TYPE, TYPE))
def test_a_worker_learns_the_distance_to_its_farthest_peer(
    plan: Plan, types: tuple[DeviceType, DeviceType]
) -> None:
    for each in apart_and_together(of_types(plan, types)):
        drawn = topology(each)
        for group in each.groups:
            for rank in range(0, group.workers, 1 + group.workers // 16):
                for route in of_rank(each, drawn, group.name, rank).routes:
                    for exchange in (one for one in route.exchanges if one.ranks.is_whole):
                        others = {(route.other_group, other) for other in exchange.ranks.first}
                        direct = {group.device_type, each.group(route.other_group).device_type} == {"cuda"}
                        expected = distances_to(each, (group.name, rank), others, direct)
                        assert exchange.distances == expected and exchange.over == expected[-1]


def apart_and_together(plan: Plan) -> list[Plan]:
    """Returns the plan and, where the meshes are as large, the one with both components in one group."""
    if plan.component("x").mesh.world_size != plan.component("y").mesh.world_size:
        return [plan]
    components = tuple(replace(each, group="a") for each in plan.components)
    return [plan, replace(plan, groups=plan.groups[:1], components=components)]


def distances_to(
    plan: Plan, worker: tuple[str, int], others: set[tuple[str, int]], direct: bool
) -> tuple[str, ...]:
    word = "device" if direct else "node"
    far = {plan.node_of(*other) != plan.node_of(*worker) for other in others - {worker}}
    found = {"process": worker in others, word: False in far, f"{word}s": True in far}
    return tuple(way for way, occurs in found.items() if occurs)


def check_consumer(zoom: RankZoom, mine: dict[int, list[int]]) -> None:
    numbers = sorted(n for samples in mine.values() for n in samples)
    (stage,) = zoom.stages
    assert stage.count == len(numbers) if stage.called else not numbers
    assert not stage.samples or list(range(*stage.samples)) == numbers
    if not zoom.routes:
        assert not numbers
        return
    (route,) = zoom.routes
    exchanges = [(each.ranks.last, each.samples) for each in route.exchanges]
    filled = {last: samples for last, samples in exchanges if samples and samples[0] < samples[1]}
    assert all({filled[producer]} == runs(mine[producer]) for producer in filled)
    assert route.count == len(numbers)
    assert route.partners != len(route.exchanges) or set(filled) == set(mine)


def check_producer(route: RankRoute, given: dict[int, list[int]]) -> None:
    for exchange in route.exchanges:
        assert exchange.samples is not None
        samples = list(range(*exchange.samples))
        for rank in (*exchange.ranks.first, exchange.ranks.last):
            assert given.get(rank, []) == samples
    if route.partners == len(route.exchanges):
        assert spans(route) == {span for samples in given.values() for span in runs(samples)}
        filled = [
            each.ranks.count for each in route.exchanges if each.samples and each.samples[0] < each.samples[1]
        ]
        assert sum(filled) == len(given)


def test_a_value_that_is_no_batch_is_received_from_all_producers() -> None:
    plan = plan_of("two_nodes.yaml", "pipeline.scored.dispatch=all", "pipeline.advantages.execute=all")
    mean = [replace(each, collect="mean") if each.name == "scored" else each for each in plan.stages]
    routes = [replace(each, collect="mean") if each.source == "scored" else each for each in plan.routes]
    plan = replace(plan, stages=tuple(mean), routes=tuple(routes))
    zoom = of_rank(plan, topology(plan), "judge", 0)
    [route] = [
        one for one in zoom.routes if one.route == "scored -> advantages.batch" and not one.is_producer
    ]
    (first, *_) = route.exchanges
    assert (route.partners, first.ranks.first, first.samples, route.total) == (1, (0, 1, 2), None, 0)
    [stage] = [stage for stage in zoom.stages if stage.stage == "advantages"]
    assert stage.total == 512  # of its other input


def on_cpu(mesh: DeviceMesh) -> Plan:
    """One component on two nodes, without stages."""
    group, component = Group("g", "cpu", mesh.world_size, 0), Component("c", "m.C", "g", mesh)
    return Plan("p", 0, Cluster(2), (group,), (component,), (), (), Run())


@given(meshes(), st.data())
def test_its_groups_and_neighbours_are_those_of_its_meshes(mesh: DeviceMesh, data: st.DataObject) -> None:
    plan = on_cpu(mesh)
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    (mine,) = of_rank(plan, topology(plan), "g", rank).components
    assert mine.coordinate == mesh.coordinate(rank) and (mine.data_rank, mine.data_size) == (
        mesh.data_rank(rank),
        mesh.data_size,
    )
    assert (
        mine.is_leader
        == (rank in mesh.collect_ranks())
        == (COLLECT["flatten"].producers.index_of(mesh, rank) is not None)
    )
    for peers in mine.peers:
        members = mesh.ranks_along(peers.dim, rank)
        assert (
            peers.ranks.first == members and members[peers.index] == rank and peers.ranks.last == members[-1]
        )
        assert peers.crosses == (len({plan.node_of("g", member) for member in members}) > 1)
    assert {peers.dim for peers in mine.peers} >= {dim for dim in DIMS if mesh.size(dim) > 1}
    for neighbours in mine.neighbours:
        assert neighbours.after == mesh.neighbour(rank, neighbours.dim, 1, neighbours.dim == "cp")


# Components, dims, nodes


@given(meshes(), st.sampled_from(["dp", "fsdp", "tp", "ulysses", "data"]))
def test_groups_of_a_dim_are_in_the_order_in_which_they_are_made(mesh: DeviceMesh, dim: str) -> None:
    plan = on_cpu(mesh)
    if mesh.size(dim) == 1:
        with pytest.raises(ZoomError, match=f"`{dim}` is 1 in every component"):
            of_dim(plan, topology(plan), dim)
        return
    (found,) = of_dim(plan, topology(plan), dim).components
    made = list(mesh.process_groups(dim))
    assert found.facts.count == len(made)
    for group in found.groups:
        assert (
            group.ranks.first == made[group.number][: len(group.ranks.first)]
            and group.ranks.last == made[group.number][-1]
        )
        assert all(mesh.dim_rank(group.ranks.last, other) == index for other, index in group.at.items())
        assert group.crosses == (len({plan.node_of("g", rank) for rank in made[group.number]}) > 1)
    assert [group.number for group in found.groups[:-1]] == list(
        range(len(found.groups) - 1)
    ) and found.groups[-1].number == len(made) - 1


@settings(max_examples=examples(25, 300))
@given(jobs())
def test_a_node_has_the_processes_that_are_on_it(job: tuple[Plan, Sizes]) -> None:
    plan, sizes = job
    drawn = topology(plan)
    for node in range(plan.cluster.nodes):
        zoom = of_node(plan, drawn, node)
        here = [
            (group.name, rank, worker.local_rank, worker.numbers)
            for group in plan.groups
            for rank, worker in enumerate(naive(group, sizes, plan.cluster.nodes))
            if worker.node == node
        ]
        assert [(each.group, each.rank, each.local_rank, each.devices) for each in zoom.processes] == here
        assert zoom.counts == {
            name: sum(group == name for group, *_ in here)
            for name in dict.fromkeys(group for group, *_ in here)
        }
        assert any(start <= node < stop for start, stop in zoom.alike)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Selection(rank=("spare", 1)), "group `spare` has no rank 1; it has rank 0 only"),
        (Selection(dim="cp"), "`cp` is 1 in every component; above 1 are `dp`, `tp` and `fsdp`"),
        (Selection("judge", "tp"), "`tp` is 1 in component `judge`; above 1 is `dp`"),
        (Selection(node=-1), "node -1 does not exist; the nodes are 0 to 1"),
    ],
)
def test_what_is_missing_is_reported_with_what_is_present(asked: Selection, message: str) -> None:
    plan = plan_of("two_nodes.yaml")
    with pytest.raises(ZoomError) as wrong:
        select(plan, topology(plan), asked)
    assert str(wrong.value) == message


# Any size


def calls(work: Callable[[], object]) -> int:
    """Returns the number of function calls."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def many(dp: int, execute: str, mode: str) -> Plan:
    mesh = {"pp_size": 2, "dp_size": dp, "fsdp_size": 2, "cp_size": 2, "tp_size": 2, "ulysses_size": 2}
    ranks = 32 * dp // 2
    one, other = (
        plans.group("a", "cuda", ranks, (0, ranks)),
        plans.group("b", "cuda", ranks, (ranks, 2 * ranks)),
    )
    given = Input(("s",), dispatch=Dispatch(mode))
    stages = [
        plans.call("s", "x.next", samples=1 << 20),
        plans.call("t", "y.take", given, execute=execute),
        plans.sync("w", "y", "x"),
    ]
    components = [plans.component("x", one, **mesh), plans.component("y", other, **mesh)]
    return plans.plan("p", Cluster.of(ranks // 4, cuda=8), [one, other], components, stages)


@pytest.mark.parametrize(("execute", "mode"), [*zip(sorted(EXECUTE), sorted(DISPATCH), strict=False)])
def test_a_rank_of_100_000_is_as_quick_as_one_of_few(execute: str, mode: str) -> None:
    """Counts function calls instead of measuring time."""
    few, lots = many(8, execute, mode), many(6250, execute, mode)
    assert lots.job_size == 200_000
    for name in ("a", "b"):
        zooms = [
            partial(of_rank, made, topology(made), name, rank) for made, rank in ((few, 77), (lots, 77_777))
        ]
        for zoom in zooms:
            zoom()  # what is remembered, is
        assert calls(zooms[1]) < 1.5 * calls(zooms[0])
