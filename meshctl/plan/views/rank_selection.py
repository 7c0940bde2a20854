"""One rank of a plan more closely, as data: where it is, its coordinates, its groups and peers, its samples,
whom it talks to.

Everything is arithmetic on strides and even shares, and what is long is folded to its first ones and the
last: the answer for one rank of 100,000 costs what it costs for one of eight. Which samples a rank gets is
said for a batch of known size that is split evenly; samples of one `group_id` stay together, which may move
the ends of a share by less than a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from meshctl.plan.model import Component, Plan, Stage, Worker
from meshctl.plan.views.topology import (
    FORMAT,
    Over,
    PlacedComponent,
    Topology,
    ZoomError,
    carries_samples,
    ends_of,
    even_flow,
    over,
    user_mode,
)
from meshctl.text.english import did_you_mean
from meshctl.topology.flows import MAX_LISTED, EvenFlow, Part, Ranks, along
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


def missing(what: str, name: str, there: Sequence[str]) -> ZoomError:
    help = did_you_mean(name, there)
    return ZoomError(f"there is no {what} `{name}`{'; ' if help else ''}{help}")


@dataclass(frozen=True)
class Peers:
    """A rank's process group along one dim."""

    dim: str
    index: int
    """Which of them the rank is."""
    ranks: Ranks
    crosses: bool
    """Whether they are on more than one node."""


@dataclass(frozen=True)
class Neighbours:
    """Who comes before and after a rank in a pipeline (none beyond its ends) or a ring."""

    dim: str
    before: int | None
    after: int | None
    ring: bool


@dataclass(frozen=True)
class RankInMesh:
    """What a rank is to one component."""

    component: str
    letter: str
    coordinate: Mapping[str, int]
    """In every dim of the mesh, outermost first."""
    views: Mapping[str, int]
    """In the dims of the views that say more."""
    data_rank: int
    data_size: int
    speaks: bool
    """Whether it is the representative of its data rank: what its peers compute is taken from it."""
    peers: tuple[Peers, ...]
    """One for each dim above 1, outermost first, then those of the views."""
    neighbours: tuple[Neighbours, ...]
    pp_stages: tuple[int, ...]
    """The pipeline stages that it holds, virtual ones too."""
    of_pp_stages: int
    """How many there are."""


@dataclass(frozen=True)
class RankStage:
    """What a rank does in one stage that its group runs."""

    stage: str
    kind: str
    component: str
    called: bool
    """Whether its method is called on this rank."""
    share: int | None = None
    """Which share of the batch it gets; of a source, which it gives. None where it gets none, or a part of
    one speaker's."""
    shares: int = 0
    total: int = 0
    """Samples in the batch; 0 where neither the recipe nor the question says."""
    count: int | None = None
    """How many of them are this rank's; none where that is not known."""
    samples: tuple[int, int] | None = None
    """Which, [start, stop) in sample order; none where they are not known or no one run."""
    note: str = ""
    """Why it is not called, or why only the run decides."""


@dataclass(frozen=True)
class Exchange:
    """Samples that go to or come from some ranks, all of which give or get the same."""

    ranks: Ranks
    samples: tuple[int, int] | None
    """[start, stop) in sample order; none where no samples move, or it is not known which."""
    over: Over
    """How far it is to the farthest of them."""


@dataclass(frozen=True)
class RankRoute:
    """One end of a route: what a rank gives on it, or what it takes."""

    route: str
    kind: Literal["data", "weights"]
    gives: bool
    component: str
    """The rank's own."""
    other: str
    """The component at the other end."""
    other_group: str
    partners: int
    """How many exchanges there are."""
    exchanges: tuple[Exchange, ...]
    """With whom; where there are more than eight, the first seven and the last."""
    total: int = 0
    """Samples in the batch; 0 where that is not known, or values travel and no samples."""
    count: int | None = None
    """How many of them it gives or takes."""
    some: bool = False
    """Whether only some of those ranks take part: who gets which samples is not known."""
    teller: int | None = None
    """Where it takes: the rank of the other end that tells it what all of them hold."""
    note: str = ""
    """Why it cannot be said who gets what."""


@dataclass(frozen=True)
class RankZoom:
    group: str
    rank: int
    workers: int
    """Of the group."""
    place: int
    places: int
    """Of the job."""
    node: int
    local_rank: int
    device_type: str
    devices: tuple[int, ...]
    """Numbers among the cluster's devices of this type; none on cpu."""
    numbers: tuple[int, ...]
    """The same on its node."""
    visible_devices: tuple[str, ...]
    """What the hardware calls them, where the recipe says it."""
    program: str
    components: tuple[RankInMesh, ...]
    stages: tuple[RankStage, ...]
    routes: tuple[RankRoute, ...]
    kind: Literal["rank"] = "rank"
    format: int = FORMAT


def of_rank(plan: Plan, drawn: Topology, group: str, rank: int, samples: int = 0) -> RankZoom:
    """`samples` are in a batch where the recipe does not say how many."""
    placed = next((each for each in drawn.groups if each.name == group), None)
    if placed is None:
        raise missing("group", group, [each.name for each in drawn.groups])
    if not 0 <= rank < placed.workers:
        has = f"the ranks 0 to {placed.workers - 1}" if placed.workers > 1 else "rank 0 alone"
        raise ZoomError(f"group `{group}` has no rank {rank}, it has {has}")
    worker = plan.worker(group, rank)
    first = worker.local_rank * placed.gpus_per_worker
    return RankZoom(
        group=group,
        rank=rank,
        workers=placed.workers,
        place=worker.place,
        places=plan.places,
        node=worker.node,
        local_rank=worker.local_rank,
        device_type=placed.device_type,
        devices=worker.devices,
        numbers=numbers_on_node(plan, worker),
        visible_devices=placed.visible_devices[first : first + placed.gpus_per_worker],
        program=placed.program,
        components=tuple(
            _in_mesh(plan, component, rank) for component in drawn.components if component.group == group
        ),
        stages=tuple(_in_stages(plan, group, rank, samples)),
        routes=tuple(_on_routes(plan, group, rank, samples)),
    )


def numbers_on_node(plan: Plan, worker: Worker) -> tuple[int, ...]:
    kind = plan.group(worker.group).device_type
    return tuple(plan.cluster.number_on_node(kind, device) for device in worker.devices)


# Its meshes


def _in_mesh(plan: Plan, component: PlacedComponent, rank: int) -> RankInMesh:
    mesh = component.mesh
    data_rank = mesh.data_rank(rank)
    return RankInMesh(
        component=component.name,
        letter=component.letter,
        coordinate=mesh.coordinate(rank),
        views={
            dim: mesh.dim_rank(rank, dim)
            for view, dims in VIEWS.items()
            if says_more(mesh, view)
            for dim in dims
        },
        data_rank=data_rank,
        data_size=mesh.data_size,
        speaks=mesh.representative(data_rank) == rank,
        peers=tuple(_peers(plan, component, facts.dim, rank) for facts in component.process_groups),
        neighbours=tuple(_neighbours(mesh, rank)),
        pp_stages=mesh.pp_stages_of(rank),
        of_pp_stages=mesh.pp_stages,
    )


def says_more(mesh: DeviceMesh, view: str) -> bool:
    """Whether a view of a mesh has dims that the mesh itself has not."""
    return mesh.ulysses_size > 1 if view == "data" else mesh.ep_size * mesh.etp_size > 1


def _peers(plan: Plan, component: PlacedComponent, dim: str, rank: int) -> Peers:
    ranks = along(component.mesh, (dim,), rank)
    return Peers(dim, component.mesh.dim_rank(rank, dim), ranks, crosses(plan, component, dim, ranks))


def crosses(plan: Plan, component: PlacedComponent, dim: str, ranks: Ranks) -> bool:
    """Whether a process group is on more than one node. Where nodes rise with the ranks, its ends tell."""
    rising = GroupPlacement(plan.node_runs(component.group)).is_in_order and (
        ranks.stride is not None or ranks.count == 1
    )
    ends = (ranks.first[0], ranks.last) if rising else component.mesh.ranks_along(dim, ranks.last)
    return len({plan.node_of(component.group, rank) for rank in ends}) > 1


def _neighbours(mesh: DeviceMesh, rank: int) -> Iterator[Neighbours]:
    """In the pipeline, which virtual stages make a ring, and in the ring of cp."""
    for dim, ring in (("pp", mesh.vpp_size > 1), ("cp", True)):
        if mesh.size(dim) > 1:
            yield Neighbours(
                dim, mesh.neighbour(rank, dim, -1, ring), mesh.neighbour(rank, dim, 1, ring), ring
            )


# Its samples


def _in_stages(plan: Plan, group: str, rank: int, samples: int) -> Iterator[RankStage]:
    for stage in plan.stages:
        for name in dict.fromkeys(
            (stage.component, stage.to) if stage.kind == "sync" else (stage.component,)
        ):
            component = plan.component(name)
            if component.group == group:
                yield _in_stage(plan, stage, component, rank, samples)


def _in_stage(plan: Plan, stage: Stage, component: Component, rank: int, samples: int) -> RankStage:
    if stage.kind == "sync":
        return RankStage(stage.name, "sync", component.name, called=True)
    if stage.is_source:
        return _in_source(stage, component, rank, samples)
    if is_user_mode(stage.execute):
        return _by_user(stage, component, stage.execute)
    if not EXECUTE[stage.execute].is_called(component.mesh, rank):
        return RankStage(
            stage.name, "call", component.name, called=False, note="`execute: first` calls rank 0 alone"
        )
    route = _lead(plan, stage)
    if route is None:
        return RankStage(
            stage.name,
            "call",
            component.name,
            called=True,
            note="its inputs are values, the same for each rank",
        )
    if mode := user_mode(plan, route):
        return _by_user(stage, component, mode)
    links = _links(plan, route, samples)
    note, whole = _undecided(route, links), not links.execute.is_per_producer
    known = links.total > 0 and not note
    return RankStage(
        stage=stage.name,
        kind="call",
        component=component.name,
        called=True,
        share=links.share_of(rank) if whole else None,
        shares=links.shares if whole else 0,
        total=links.total,
        count=links.samples_of(rank) if known else None,
        samples=_pair(links.span_of(rank)) if known else None,
        note=note,
    )


def _by_user(stage: Stage, component: Component, mode: str) -> RankStage:
    """A call for which a user's mode decides which samples a rank receives."""
    return RankStage(stage.name, "call", component.name, called=True, note=_note(mode))


def _note(mode: str) -> str:
    return f"{shown_mode(mode)}: which samples, only the run decides"


def _in_source(stage: Stage, component: Component, rank: int, samples: int) -> RankStage:
    """The speakers of a source share out its samples."""
    if mode := next(filter(is_user_mode, (stage.collect, stage.execute)), ""):
        return _by_user(stage, component, mode)
    who, total = producer_set(COLLECT[stage.collect], EXECUTE[stage.execute]), stage.samples or samples
    number, shares = who.index_of(component.mesh, rank), who.count(component.mesh)
    span = range(0) if number is None else even_split(total, shares, number)
    return RankStage(
        stage=stage.name,
        kind="call",
        component=component.name,
        called=number is not None,
        share=number,
        shares=shares,
        total=total,
        count=len(span) if total else None,
        samples=_pair(span),
        note="who speaks for its data rank is called" if number is None else "",
    )


def _lead(plan: Plan, stage: Stage) -> Route | None:
    """The route that gives order and shares to all inputs of a call: the first that carries samples."""
    routes = {(route.source, route.parameter): route for route in plan.routes if route.target == stage.name}
    inputs = (routes[name, given.parameter] for given in stage.inputs for name in given.stages)
    return next((route for route in inputs if carries_samples(plan, route)), None)


def _links(plan: Plan, route: Route, samples: int) -> EvenFlow:
    return even_flow(plan, route, plan.stage(route.source).samples or samples)


def _undecided(route: Route, links: EvenFlow) -> str:
    """Why it cannot be said who gets which samples."""
    if route.dispatch.home:
        return f"each sample goes home, to the data rank that made it in `{route.dispatch.home}`"
    if route.dispatch.balance:
        return "the tokens decide who gets which samples"
    if links.execute.is_joint and not route.dispatch.allow_empty and 0 < links.total < links.shares:
        return f"{links.total} samples are too few for {links.shares} shares"
    return ""


def _pair(span: range) -> tuple[int, int] | None:
    return (span.start, span.stop) if span else None


# Whom it talks to

_Portion = tuple[Ranks, tuple[int, int] | None]
"""Ranks of the other end, and the samples that each of them gives or gets."""


def _over(plan: Plan, group: str, rank: int, other: str, ranks: Ranks) -> Over:
    """How far it is from a rank to those of another group, or of its own. Where nodes rise with the ranks,
    their ends tell."""
    if (group, ranks.count, ranks.first) == (other, 1, (rank,)):
        return "process"
    nodes = {plan.node_of(other, each) for each in (*ranks.first, ranks.last)}
    return over(plan, group, other, near=nodes == {plan.node_of(group, rank)})


@dataclass(frozen=True)
class _Way:
    """A route of samples or values at one rank, and what is known of a batch on it."""

    plan: Plan
    rank: int
    route: Route
    giver: Component
    taker: Component
    links: EvenFlow
    carries: bool
    """Samples, and not values."""
    note: str

    @property
    def known(self) -> bool:
        """Whether it can be said who gets which samples."""
        return self.carries and self.links.total > 0 and not self.note

    @property
    def sifts(self) -> bool:
        """Whether it depends on the samples who speaks to whom."""
        return (
            self.carries
            and self.links.execute.is_joint
            and self.links.shares > 1
            and self.links.producers > 1
        )

    def end(
        self,
        gives: bool,
        partners: int,
        parts: Sequence[_Portion],
        count: int | None = None,
        teller: int | None = None,
    ) -> RankRoute:
        mine, other = (self.giver, self.taker) if gives else (self.taker, self.giver)
        exchanges = [
            Exchange(ranks, span, _over(self.plan, mine.group, self.rank, other.group, ranks))
            for ranks, span in parts
        ]
        return RankRoute(
            route=self.route.name,
            kind="data",
            gives=gives,
            component=mine.name,
            other=other.name,
            other_group=other.group,
            partners=partners,
            exchanges=tuple(exchanges),
            total=self.links.total if self.carries else 0,
            count=count,
            some=not self.known and self.sifts and exchanges[0].ranks.count > 1,
            teller=teller,
            note=self.note,
        )


def _on_routes(plan: Plan, group: str, rank: int, samples: int) -> Iterator[RankRoute]:
    for route in plan.routes:
        giver, taker = ends_of(plan, route)
        if route.kind == "weights":
            yield from _undivided(
                plan, route, "which shards, both ends tell each other at the first sync", group, rank
            )
            continue
        if mode := user_mode(plan, route):
            yield from _undivided(plan, route, _note(mode), group, rank)
            continue
        links, carries = _links(plan, route, samples), carries_samples(plan, route)
        way = _Way(
            plan, rank, route, giver, taker, links, carries, _undecided(route, links) if carries else ""
        )
        if giver.group == group and (number := links.producer_set.index_of(giver.mesh, rank)) is not None:
            yield _given(way, number)
        if taker.group == group and (heard := producers_of(taker.mesh, links.execute, links.producers, rank)):
            yield _taken(way, heard)


def _undivided(plan: Plan, route: Route, note: str, group: str, rank: int) -> Iterator[RankRoute]:
    """A route of which only the run knows which rank exchanges what with which other: each end exchanges with
    all ranks of the other."""
    giver, taker = ends_of(plan, route)
    for mine, other in ((giver, taker), (taker, giver)):
        if mine.group == group:
            ranks = Ranks.run(range(other.mesh.world_size))
            whole = Exchange(ranks, None, _over(plan, group, rank, other.group, ranks))
            yield RankRoute(
                route.name,
                route.kind,
                mine is giver,
                mine.name,
                other.name,
                other.group,
                1,
                (whole,),
                note=note,
            )


def _given(way: _Way, number: int) -> RankRoute:
    """What a speaker gives, share by share."""
    links = way.links
    if not way.known:
        return way.end(True, 1, [(Ranks.run(links.workers_of(number)), None)])
    shares = links.shares_of(number)
    shown = _shown(list(chain.from_iterable(_shown(run) for run in shares)))
    parts = [(links.ranks_of(number, share), _samples(links.part_for(number, share))) for share in shown]
    return way.end(True, sum(map(len, shares)), parts, len(links.held(number)))


def _taken(way: _Way, heard: range) -> RankRoute:
    """What a rank takes, speaker by speaker."""
    links, rank = way.links, way.rank
    teller = links.producer_rank(heard[rank % len(heard)])
    if not way.known:
        speakers = Ranks.of(len(heard), lambda index: links.producer_rank(heard[index]))
        return way.end(False, 1, [(speakers, None)], teller=teller)
    hears = links.producers_of(rank)
    parts = [
        (Ranks.one(links.producer_rank(speaker)), _samples(links.part_of(rank, speaker)))
        for speaker in _shown(hears)
    ]
    return way.end(False, len(hears), parts, links.samples_of(rank), teller)


def _samples(part: Part) -> tuple[int, int]:
    return part.samples.start, part.samples.stop


def _shown(numbers: Sequence[int]) -> list[int]:
    """The first ones and the last."""
    return list(numbers) if len(numbers) <= MAX_LISTED else [*numbers[: MAX_LISTED - 1], numbers[-1]]
