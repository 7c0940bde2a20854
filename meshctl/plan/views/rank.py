"""One rank of a plan, as data: its location, coordinates, peers, samples, and the ranks it exchanges batches
with.

Everything is computed from strides and even splits, and long lists contain only their first items and the
last item: one rank of 100,000 costs as much as one of eight. The samples of a rank are known only if the size
of the batch is known and the batch is split evenly. Samples with the same `group_id` stay together, so the
boundaries of a part may differ from those shown by less than a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.plan.model import Component, Plan, Stage, Worker
from meshctl.plan.views.distances import Distance, carries_samples, distance, ends_of, even_flow, user_mode
from meshctl.plan.views.topology import FORMAT, PlacedComponent, Topology, ZoomError
from meshctl.text.english import did_you_mean
from meshctl.topology.flows import MAX_LISTED, EvenFlow, Ranks, along
from meshctl.topology.mesh import VIEWS, DeviceMesh, even_split
from meshctl.topology.modes import (
    COLLECT,
    EXECUTE,
    Route,
    is_user_mode,
    producer_set,
    producers_of,
    shown_mode,
)
from meshctl.topology.placement import GroupPlacement


@dataclass(frozen=True)
class Peers:
    """The process group of a rank along one dim."""

    dim: str
    index: int
    """The index of the rank in the process group."""
    ranks: Ranks
    crosses: bool
    """True if the group spans several nodes."""


@dataclass(frozen=True)
class Neighbours:
    """The ranks before and after a rank in a pipeline or a ring; None beyond the ends of a pipeline."""

    dim: str
    before: int | None
    after: int | None
    ring: bool


@dataclass(frozen=True)
class RankInMesh:
    """A rank in the mesh of one component."""

    component: str
    letter: str
    coordinate: Mapping[str, int]
    """Dim -> index of the rank, for every dim of the mesh, outermost first."""
    views: Mapping[str, int]
    """Dim -> index of the rank, for the dims of the views that differ from the mesh."""
    data_rank: int
    data_size: int
    is_leader: bool = field(metadata={"key": "speaks"})
    """True if the rank is the representative of its data rank: the only one whose results are collected."""
    peers: tuple[Peers, ...]
    """The process group along each dim with a size above 1, outermost first, then along the dims of views."""
    neighbours: tuple[Neighbours, ...]
    pp_stages: tuple[int, ...]
    """The pipeline stages on this rank, virtual ones included."""
    of_pp_stages: int
    """The number of pipeline stages."""


@dataclass(frozen=True)
class RankStage:
    """The part of one rank in one stage of its group."""

    stage: str
    kind: str
    component: str
    called: bool = True
    """True if the method is called on this rank."""
    share: int | None = None
    """The number of the share that the rank consumes or, in a source, produces. None if it has no share of
    the whole batch."""
    shares: int = 0
    """The number of shares of the batch; 0 if the batch has none."""
    total: int = 0
    """The number of samples in the batch; 0 if unknown."""
    count: int | None = None
    """The number of samples of this rank; None if unknown."""
    samples: tuple[int, int] | None = None
    """[start, stop) in sample order; None if unknown, or if the samples are not contiguous."""
    note: str = ""
    """The reason why the method is not called, or why the samples are unknown before the run."""


@dataclass(frozen=True)
class Exchange:
    """Samples that a rank sends to one or several ranks, or receives from them. All of these ranks send or
    receive the same samples."""

    ranks: Ranks
    samples: tuple[int, int] | None
    """[start, stop) in sample order; None if no samples move, or if they are unknown."""
    over: Distance
    """The distance to the farthest of the ranks."""
    distances: tuple[Distance, ...] = field(metadata={"key": "ways"})
    """All different distances to the listed ranks, the nearest first."""


@dataclass(frozen=True)
class RankRoute:
    """One end of a route at a rank."""

    route: str
    kind: Literal["data", "weights"]
    is_producer: bool = field(metadata={"key": "gives"})
    component: str
    """The component at this rank's end."""
    other: str
    """The component at the other end."""
    other_group: str
    partners: int
    """The number of exchanges."""
    exchanges: tuple[Exchange, ...]
    """At most `MAX_LISTED`: the first ones and the last."""
    total: int = 0
    """The number of samples in the batch; 0 if unknown, or if the route carries no samples."""
    count: int | None = None
    """The number of samples that the rank sends or receives; None if unknown."""
    some: bool = False
    """True if only some of the listed ranks exchange samples with this rank, and the run decides which."""
    leader: int | None = field(default=None, metadata={"key": "teller"})
    """At a consumer: the producer rank that sends it the headers of all producers. None at a producer."""
    note: str = ""
    """The reason why the samples are unknown."""


@dataclass(frozen=True)
class RankZoom:
    group: str
    rank: int
    workers: int
    """The number of workers of the group."""
    job_rank: int = field(metadata={"key": "place"})
    job_size: int = field(metadata={"key": "places"})
    node: int
    local_rank: int
    device_type: str
    devices: tuple[int, ...]
    """The devices of the rank, numbered over the cluster's devices of this type; empty on cpu."""
    numbers: tuple[int, ...]
    """The same devices, numbered on the node."""
    visible_devices: tuple[str, ...]
    """The hardware names of the devices, if the recipe states them."""
    program: str
    python: str
    components: tuple[RankInMesh, ...]
    stages: tuple[RankStage, ...]
    routes: tuple[RankRoute, ...]
    kind: Literal["rank"] = "rank"
    format: int = FORMAT


def of_rank(plan: Plan, topology: Topology, group: str, rank: int, samples: int = 0) -> RankZoom:
    """Returns one rank of a group. `samples` is the size of batches for which the recipe states none.

    Raises `ZoomError` if the group or the rank does not exist.
    """
    placed = next((each for each in topology.groups if each.name == group), None)
    if placed is None:
        raise missing("group", group, [each.name for each in topology.groups])
    if not 0 <= rank < placed.workers:
        has = f"the ranks 0 to {placed.workers - 1}" if placed.workers > 1 else "rank 0 only"
        raise ZoomError(f"group `{group}` has no rank {rank}; it has {has}")
    worker = plan.worker(group, rank)
    first = worker.local_rank * placed.gpus_per_worker
    components = [component for component in topology.components if component.group == group]
    return RankZoom(
        group=group,
        rank=rank,
        workers=placed.workers,
        job_rank=worker.job_rank,
        job_size=plan.job_size,
        node=worker.node,
        local_rank=worker.local_rank,
        device_type=placed.device_type,
        devices=worker.devices,
        numbers=numbers_on_node(plan, worker),
        visible_devices=placed.visible_devices[first : first + placed.gpus_per_worker],
        program=placed.program,
        python=placed.python,
        components=tuple(_in_mesh(plan, component, rank) for component in components),
        stages=tuple(
            _stage(plan, stage, component, rank, samples)
            for stage in plan.stages
            for name in dict.fromkeys((stage.component, stage.to or stage.component))
            if (component := plan.component(name)).group == group
        ),
        routes=tuple(_routes(plan, group, rank, samples)),
    )


def missing(what: str, name: str, present: Sequence[str]) -> ZoomError:
    help = did_you_mean(name, present)
    return ZoomError(f"{what} `{name}` does not exist{'; ' if help else ''}{help}")


def numbers_on_node(plan: Plan, worker: Worker) -> tuple[int, ...]:
    device_type = plan.group(worker.group).device_type
    return tuple(plan.cluster.number_on_node(device_type, device) for device in worker.devices)


# Meshes


def _in_mesh(plan: Plan, component: PlacedComponent, rank: int) -> RankInMesh:
    mesh = component.mesh
    data_rank = mesh.data_rank(rank)
    dims = [dim for view, dims in VIEWS.items() if refactors(mesh, view) for dim in dims]
    return RankInMesh(
        component=component.name,
        letter=component.letter,
        coordinate=mesh.coordinate(rank),
        views={dim: mesh.dim_rank(rank, dim) for dim in dims},
        data_rank=data_rank,
        data_size=mesh.data_size,
        is_leader=mesh.representative(data_rank) == rank,
        peers=tuple(_peers(plan, component, groups.dim, rank) for groups in component.process_groups),
        neighbours=tuple(
            Neighbours(dim, mesh.neighbour(rank, dim, -1, ring), mesh.neighbour(rank, dim, 1, ring), ring)
            for dim, ring in (("pp", mesh.vpp_size > 1), ("cp", True))
            if mesh.size(dim) > 1
        ),
        pp_stages=mesh.pp_stages_of(rank),
        of_pp_stages=mesh.pp_stages,
    )


def refactors(mesh: DeviceMesh, view: str) -> bool:
    """Returns whether a view of a mesh has dims that the mesh itself does not have."""
    return mesh.ulysses_size > 1 if view == "data" else mesh.ep_size * mesh.etp_size > 1


def _peers(plan: Plan, component: PlacedComponent, dim: str, rank: int) -> Peers:
    ranks = along(component.mesh, (dim,), rank)
    return Peers(dim, component.mesh.dim_rank(rank, dim), ranks, crosses(plan, component, dim, ranks))


def crosses(plan: Plan, component: PlacedComponent, dim: str, ranks: Ranks) -> bool:
    """Returns whether a process group spans several nodes. Where node numbers rise with the ranks, it
    compares only the nodes of the first and the last rank."""
    is_even = ranks.stride is not None or ranks.count == 1
    is_rising = is_even and GroupPlacement(plan.node_runs(component.group)).is_in_order
    ends = (ranks.first[0], ranks.last) if is_rising else component.mesh.ranks_along(dim, ranks.last)
    return len({plan.node_of(component.group, rank) for rank in ends}) > 1


# Stages


def _stage(plan: Plan, stage: Stage, component: Component, rank: int, samples: int) -> RankStage:
    made = RankStage(stage.name, stage.kind, component.name)
    if stage.kind == "sync":
        return made
    if stage.is_source:
        if user := next(filter(is_user_mode, (stage.collect, stage.execute)), ""):
            return replace(made, note=_by_user(user))
        producers = producer_set(COLLECT[stage.collect], EXECUTE[stage.execute])
        total, shares = stage.samples or samples, producers.count(component.mesh)
        index = producers.index_of(component.mesh, rank)
        made = replace(made, shares=shares, total=total, count=0 if total else None)
        if index is None:
            return replace(made, called=False, note="the leader of its data rank is called")
        span = even_split(total, shares, index)
        return replace(made, share=index, count=len(span) if total else None, samples=_ends(span))
    if is_user_mode(stage.execute):
        return replace(made, note=_by_user(stage.execute))
    if not EXECUTE[stage.execute].is_called(component.mesh, rank):
        return replace(made, called=False, note="`execute: first` calls rank 0 only")
    if stage.is_without_data:
        return replace(made, note="it has no input")
    routes = {(route.source, route.parameter): route for route in plan.routes if route.target == stage.name}
    inputs = (routes[name, given.parameter] for given in stage.inputs for name in given.stages)
    route = next((route for route in inputs if carries_samples(plan, route)), None)
    if route is None:
        return replace(made, note="its inputs are values that are the same on each rank")
    if mode := user_mode(plan, route):
        return replace(made, note=_by_user(mode))
    flow = _flow(plan, route, samples)
    note = _unknown(route, flow)
    made = replace(made, total=flow.total, note=note)
    if not flow.execute.is_per_producer:
        made = replace(made, share=flow.share_of(rank), shares=flow.shares)
    if flow.total == 0 or note:
        return made
    return replace(made, count=flow.samples_of(rank), samples=_ends(flow.span_of(rank)))


def _by_user(mode: str) -> str:
    return f"{shown_mode(mode)}: the samples are known only in the run"


def _flow(plan: Plan, route: Route, samples: int) -> EvenFlow:
    return even_flow(plan, route, plan.stage(route.source).samples or samples)


def _unknown(route: Route, flow: EvenFlow) -> str:
    """Returns why it is unknown which rank has which samples; empty if it is known."""
    if route.dispatch.home:
        return f"each sample goes to the data rank that produced it in `{route.dispatch.home}`"
    if route.dispatch.balance:
        return "token counts decide which rank has which samples"
    if flow.execute.is_joint and not route.dispatch.allow_empty and 0 < flow.total < flow.shares:
        return f"{flow.total} samples are too few for {flow.shares} shares"
    return ""


def _ends(span: range) -> tuple[int, int] | None:
    return (span.start, span.stop) if span else None


# Routes


def _routes(plan: Plan, group: str, rank: int, samples: int) -> Iterator[RankRoute]:
    for route in plan.routes:
        producer, consumer = ends_of(plan, route)
        mode = user_mode(plan, route)
        if route.kind == "weights" or mode:
            is_weights = route.kind == "weights"
            note = "both ends exchange their shards at the first sync" if is_weights else _by_user(mode)
            for is_producer, own, other in ((True, producer, consumer), (False, consumer, producer)):
                if own.group == group:  # its exchanges are unknown before the run: all ranks of the other end
                    everyone = Ranks.run(range(other.mesh.world_size))
                    yield replace(_end(plan, route, is_producer, rank, [(everyone, None)]), note=note)
            continue
        flow = _flow(plan, route, samples)
        if producer.group == group:
            index = flow.producer_set.index_of(producer.mesh, rank)
            if index is not None:
                yield _sent(plan, route, flow, rank, index)
        if consumer.group == group:
            producers = producers_of(consumer.mesh, flow.execute, flow.producers, rank)
            if producers:
                yield _received(plan, route, flow, rank, producers)


_Portion = tuple[Ranks, tuple[int, int] | None]
"""Ranks of the other end, and the samples that each of them sends or receives."""


def _end(plan: Plan, route: Route, is_producer: bool, rank: int, portions: Sequence[_Portion]) -> RankRoute:
    own, other = ends_of(plan, route) if is_producer else reversed(ends_of(plan, route))
    found = [_distances(plan, own.group, rank, other.group, ranks) for ranks, _ in portions]
    exchanges = tuple(
        Exchange(*portion, each[-1], each) for portion, each in zip(portions, found, strict=True)
    )
    return RankRoute(
        route=route.name,
        kind=route.kind,
        is_producer=is_producer,
        component=own.name,
        other=other.name,
        other_group=other.group,
        partners=len(exchanges),
        exchanges=exchanges,
    )


def _sent(plan: Plan, route: Route, flow: EvenFlow, rank: int, producer: int) -> RankRoute:
    if not _is_known(plan, route, flow):
        end = _end(plan, route, True, rank, [(Ranks.run(flow.workers_of(producer)), None)])
        return _with_unknown_samples(plan, route, flow, end)
    shares = flow.shares_of(producer)
    shown = _first_and_last(list(chain.from_iterable(map(_first_and_last, shares))))
    portions = [(flow.ranks_of(producer, share), _samples(flow.samples(producer, share))) for share in shown]
    end = _end(plan, route, True, rank, portions)
    return replace(end, partners=sum(map(len, shares)), total=flow.total, count=len(flow.held(producer)))


def _received(plan: Plan, route: Route, flow: EvenFlow, rank: int, producers: range) -> RankRoute:
    leader = flow.producer_rank(producers[rank % len(producers)])
    if not _is_known(plan, route, flow):
        ranks = Ranks.of(len(producers), lambda index: flow.producer_rank(producers[index]))
        end = _end(plan, route, False, rank, [(ranks, None)])
        return replace(_with_unknown_samples(plan, route, flow, end), leader=leader)
    sending = flow.producers_of(rank)
    portions = [
        (Ranks.one(flow.producer_rank(producer)), _samples(flow.samples(producer, flow.share_of(rank))))
        for producer in _first_and_last(sending)
    ]
    end = _end(plan, route, False, rank, portions)
    return replace(end, partners=len(sending), total=flow.total, count=flow.samples_of(rank), leader=leader)


def _is_known(plan: Plan, route: Route, flow: EvenFlow) -> bool:
    return carries_samples(plan, route) and flow.total > 0 and not _unknown(route, flow)


def _with_unknown_samples(plan: Plan, route: Route, flow: EvenFlow, end: RankRoute) -> RankRoute:
    if not carries_samples(plan, route):
        return end
    depends_on_samples = flow.execute.is_joint and flow.shares > 1 and flow.producers > 1
    some = depends_on_samples and end.exchanges[0].ranks.count > 1
    return replace(end, total=flow.total, some=some, note=_unknown(route, flow))


def _distances(plan: Plan, group: str, rank: int, other: str, ranks: Ranks) -> tuple[Distance, ...]:
    """Returns the distances from a rank to the listed ranks of the group `other`, the nearest first."""
    listed = {(other, each) for each in (*ranks.first, ranks.last)}
    node, nodes = plan.node_of(group, rank), {plan.node_of(*each) for each in listed - {(group, rank)}}
    found: list[Distance] = ["process"] if (group, rank) in listed else []
    found += [distance(plan, group, other, near=True)] if node in nodes else []
    return (*found, *([distance(plan, group, other, near=False)] if nodes - {node} else []))


def _samples(span: range) -> tuple[int, int]:
    return span.start, span.stop


def _first_and_last(numbers: Sequence[int]) -> list[int]:
    return list(numbers) if len(numbers) <= MAX_LISTED else [*numbers[: MAX_LISTED - 1], numbers[-1]]
