"""What a picture of a plan says, as data: the same for text, JSON and every drawing.

It is made of the plan alone and holds nothing that grows with devices: nodes that look alike are one
`NodeKind`, neighbouring ranks that fill nodes alike are one `NodeRun`, process groups are a count, a size and
a stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from meshctl.plan.model import SPARSE, Cluster, Component, Group, Plan, Stage
from meshctl.text.redaction import command_line
from meshctl.topology.cluster import DIRECT
from meshctl.topology.flows import EvenFlow
from meshctl.topology.mesh import VIEWS, DeviceMesh
from meshctl.topology.modes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    Dispatch,
    Route,
    is_user_mode,
    part_count,
    producer_set,
)
from meshctl.topology.placement import NodeRun, span_nodes

FORMAT = 1
"""Of the JSON."""
SHOWN = 8
"""So many ranks of a process group are its example."""

Reach = Literal["inside", "some", "all"]
"""Of process groups: whether they stay inside a node, or some or all of them cross nodes."""

Over = Literal["process", "node", "nodes", "device", "devices"]
"""What lies between those who give and those who take: nothing, for each takes its own; a node that holds all
of them; several nodes; and the same two where tensors get from device to device without the CPU's memory."""


class ZoomError(ValueError):
    """A part that is to be shown is not there; the message says what is."""


@dataclass(frozen=True)
class Cell:
    """Neighbouring devices of one node that the same groups use; idle where there is none."""

    device_type: str
    devices: tuple[int, int]
    """[start, stop), numbers on the node."""
    groups: tuple[str, ...]
    """Several where groups are colocated."""
    each: int = 1
    """Devices per worker, of the first group."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes that look alike."""

    nodes: tuple[tuple[int, int], ...]
    """Runs [start, stop)."""
    cells: tuple[Cell, ...]
    """Left to right; together they are all devices of the node."""
    processes: tuple[tuple[str, int], ...] = ()
    """CPU groups and how many of their processes each of these nodes has."""


@dataclass(frozen=True)
class PlacedGroup:
    name: str
    device_type: str
    workers: int
    devices: int
    """How many accelerators; 0 on cpu."""
    gpus_per_worker: int
    visible_devices: tuple[str, ...]
    colocate: str
    program: str
    """The command line of somebody's own script; empty for components."""
    components: tuple[str, ...]
    nodes: int
    """On how many nodes it has workers."""
    stretches: tuple[NodeRun, ...]


@dataclass(frozen=True)
class ProcessGroups:
    """All process groups along one dim of a component's mesh."""

    dim: str
    """A dim of the mesh or of one of its views (ulysses, ep, etp, ep_fsdp)."""
    count: int
    size: int
    stride: int | None
    """Between neighbours of a group, in ranks; none where it is not even."""
    example: tuple[int, ...]
    """The ranks of the first group, eight at most."""
    reach: Reach


@dataclass(frozen=True)
class PlacedComponent:
    name: str
    letter: str
    """A, B, ... Z, AA, ..."""
    group: str
    target: str
    frozen: bool
    mesh: DeviceMesh
    layout: str
    """`fsdp 2 x tp 2`: the dims above 1, outermost first; `one rank`."""
    data_size: int
    process_groups: tuple[ProcessGroups, ...]
    """One for each dim above 1, outermost first, then those of the views."""


@dataclass(frozen=True)
class PlacedStage:
    name: str
    kind: str
    component: str
    method: str
    to: str
    to_method: str
    execute: str
    collect: str
    samples: int
    sample_bytes: int
    every: int
    when: str
    lag: int
    after: int
    """Its place in the order in which workers run it, from 1."""
    checksum: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True)
class Flow:
    """A route, and how many speak and hear on it."""

    name: str
    source: str
    target: str
    parameter: str
    kind: Literal["data", "weights"]
    collect: str
    dispatch: Dispatch
    slots: int
    giver: str
    """Component."""
    taker: str
    speakers: int
    """Ranks that give."""
    hearers: int
    """Ranks that take."""
    shares: int
    """Into how many different shares a batch is cut; 1 where all get the same."""
    samples: int
    """Per step, where the recipe says it; else 0."""
    bytes: int
    """Per step, each sample counted once, where the recipe says it; else 0."""
    over: Over
    """How far it goes at most."""


@dataclass(frozen=True)
class Warning:
    code: str
    message: str
    where: str
    """FILE:LINE:COLUMN, or empty."""
    help: str


@dataclass(frozen=True)
class Topology:
    name: str
    digest: str
    cluster: Cluster
    workers: int
    idle: int
    """Devices of the cluster that no group uses."""
    nodes: tuple[NodeKind, ...]
    groups: tuple[PlacedGroup, ...]
    components: tuple[PlacedComponent, ...]
    stages: tuple[PlacedStage, ...]
    routes: tuple[Flow, ...]
    warnings: tuple[Warning, ...] = ()
    format: int = FORMAT


def topology(plan: Plan, warnings: Iterable[Warning] = ()) -> Topology:
    """What there is to draw of a plan."""
    letters = dict(zip((component.name for component in plan.components), _letters(), strict=False))
    after = {stage.name: number for number, stage in enumerate(plan.stages, 1)}
    nodes = tuple(_node_kinds(plan))
    return Topology(
        name=plan.name,
        digest=plan.digest,
        cluster=plan.cluster,
        workers=plan.places,
        idle=sum(_idle(kind) for kind in nodes),
        nodes=nodes,
        groups=tuple(_group(plan, group) for group in plan.groups),
        components=tuple(
            placed_component(plan, component, letters[component.name]) for component in plan.components
        ),
        stages=tuple(_stage(stage, after[stage.name]) for stage in plan.stages),
        routes=tuple(_flow(plan, route) for route in plan.routes),
        warnings=tuple(warnings),
    )


def _letters() -> Iterator[str]:
    """A ... Z, AA ... AZ, BA ..."""
    number = 0
    while True:
        number += 1
        left, letters = number, ""
        while left:
            left, digit = divmod(left - 1, 26)
            letters = chr(ord("A") + digit) + letters
        yield letters


# Placement


@dataclass(frozen=True)
class _Held:
    """What a group has on each node of a run of nodes: devices [start, stop), or on cpu a count of processes."""

    group: str
    device_type: str
    start: int
    stop: int
    each: int


def _node_kinds(plan: Plan) -> Iterator[NodeKind]:
    """The nodes, equal ones together, in the order of the first of each kind."""
    runs: dict[tuple[tuple[Cell, ...], tuple[tuple[str, int], ...]], list[tuple[int, int]]] = {}
    for start, stop, held in _segments(plan):
        look = _cells(plan, start, held), _processes(plan, held)
        mine = runs.setdefault(look, [])
        if mine and mine[-1][1] == start:
            mine[-1] = (mine[-1][0], stop)
        else:
            mine.append((start, stop))
    for (cells, processes), mine in runs.items():
        yield NodeKind(tuple(mine), cells, processes)


def _segments(plan: Plan) -> Iterator[tuple[int, int, list[_Held]]]:
    """Runs of nodes between which something changes, with what groups have on each node of them."""
    begins: dict[int, list[_Held]] = {0: [], plan.cluster.nodes: []}
    ends: dict[int, list[_Held]] = {}
    for group in plan.groups:
        for stretch in plan.node_runs(group.name):
            held = _held(group, stretch)
            begins.setdefault(stretch.first_node, []).append(held)
            ends.setdefault(stretch.last_node + 1, []).append(held)
    for runs in plan.cluster.devices_per_node.values():
        node = 0
        for nodes, _ in runs:
            node += nodes
            begins.setdefault(node, [])
    here: list[_Held] = []
    for start, stop in pairwise(sorted({node for node in (*begins, *ends) if node <= plan.cluster.nodes})):
        for held in ends.get(start, ()):
            here.remove(held)
        here += begins.get(start, ())
        yield start, stop, here


def _held(group: Group, stretch: NodeRun) -> _Held:
    if group.device_type == "cpu":
        return _Held(group.name, "cpu", 0, stretch.each, 1)
    stop = stretch.first_device + stretch.each * group.gpus_per_worker
    return _Held(group.name, group.device_type, stretch.first_device, stop, group.gpus_per_worker)


def _cells(plan: Plan, node: int, held: list[_Held]) -> tuple[Cell, ...]:
    return tuple(cell for kind in plan.cluster.devices_per_node for cell in _cells_of(plan, kind, node, held))


def _cells_of(plan: Plan, kind: str, node: int, held: list[_Held]) -> Iterator[Cell]:
    """The devices of one type on a node, cut where other groups begin."""
    mine = [one for one in held if one.device_type == kind]
    order = {group.name: number for number, group in enumerate(plan.groups)}
    edges = {
        0,
        plan.cluster.devices_on(kind, node),
        *(edge for one in mine for edge in (one.start, one.stop)),
    }
    last: Cell | None = None
    for start, stop in pairwise(sorted(edges)):
        users = sorted(
            {one.group: one for one in mine if one.start <= start < one.stop}.values(),
            key=lambda one: order[one.group],
        )
        groups = tuple(one.group for one in users)
        if last and last.groups == groups:
            last = Cell(kind, (last.devices[0], stop), groups, last.each)
            continue
        if last:
            yield last
        last = Cell(kind, (start, stop), groups, users[0].each if users else 1)
    if last:
        yield last


def _processes(plan: Plan, held: list[_Held]) -> tuple[tuple[str, int], ...]:
    counts = {one.group: one.stop for one in held if one.device_type == "cpu"}
    return tuple((group.name, counts[group.name]) for group in plan.groups if group.name in counts)


def _idle(kind: NodeKind) -> int:
    devices = sum(cell.devices[1] - cell.devices[0] for cell in kind.cells if not cell.groups)
    return devices * sum(stop - start for start, stop in kind.nodes)


def _group(plan: Plan, group: Group) -> PlacedGroup:
    return PlacedGroup(
        name=group.name,
        device_type=group.device_type,
        workers=group.workers,
        devices=0 if group.device_type == "cpu" else group.workers * group.gpus_per_worker,
        gpus_per_worker=group.gpus_per_worker,
        visible_devices=group.visible_devices,
        colocate=group.colocate,
        program=command_line(group.program.argv) if group.program else "",
        components=tuple(component.name for component in plan.components_of(group.name)),
        nodes=sum(stop - start for start, stop in plan.node_runs_of(group.name)),
        stretches=plan.node_runs(group.name),
    )


# Meshes


def placed_component(plan: Plan, component: Component, letter: str) -> PlacedComponent:
    mesh = component.mesh
    stretches = plan.node_runs(component.group)
    return PlacedComponent(
        name=component.name,
        letter=letter,
        group=component.group,
        target=component.target,
        frozen=component.frozen,
        mesh=mesh,
        layout=layout_of(mesh),
        data_size=mesh.data_size,
        process_groups=tuple(process_groups(mesh, dim, stretches) for dim in dims_of(mesh)),
    )


def layout_of(mesh: DeviceMesh) -> str:
    """In the mesh's own order, which need not be the usual one."""
    return (
        " x ".join(
            f"{dim} {size}" for dim, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True) if size > 1
        )
        or "one rank"
    )


def dims_of(mesh: DeviceMesh) -> tuple[str, ...]:
    """The dims above 1, outermost first, then those of the views that say more than the mesh."""
    views = [dim for dim in ("ulysses",) if mesh.size(dim) > 1]
    if mesh.ep_size * mesh.etp_size > 1:
        views += [dim for dim in VIEWS["expert"] if mesh.size(dim) > 1]
    return (*(dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1), *views)


def process_groups(mesh: DeviceMesh, dim: str, stretches: tuple[NodeRun, ...]) -> ProcessGroups:
    size = mesh.size(dim)
    example = tuple(mesh.rank({dim: index}) for index in range(min(size, SHOWN)))
    return ProcessGroups(
        dim, mesh.world_size // size, size, mesh.stride(dim), example, span_nodes(stretches, mesh, dim)
    )


# The pipeline


def _stage(stage: Stage, after: int) -> PlacedStage:
    return PlacedStage(
        name=stage.name,
        kind=stage.kind,
        component=stage.component,
        method=stage.method,
        to=stage.to,
        to_method=stage.to_method,
        execute=stage.execute,
        collect=stage.collect,
        samples=stage.samples,
        sample_bytes=stage.sample_bytes,
        every=stage.every,
        when=stage.when,
        lag=stage.lag,
        after=after,
        checksum=stage.checksum,
    )


def ends_of(plan: Plan, route: Route) -> tuple[Component, Component]:
    """The components that give and take on a route."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    return plan.component(source.component), plan.component(
        source.to if route.kind == "weights" else target.component
    )


def carries_samples(plan: Plan, route: Route) -> bool:
    """Whether samples travel on it: `flatten` joins batches, and the `first` value is one where the recipe
    counts its samples."""
    collect = COLLECT.get(route.collect)
    if collect is None:
        return False
    return route.kind == "data" and (
        collect.is_batch or (collect.is_first and plan.stage(route.source).samples > 0)
    )


def user_mode(plan: Plan, route: Route) -> str:
    """The first mode of a route that is a user's, `module:NAME`; empty where all are built in."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    names = (route.collect, source.execute, route.dispatch.mode, target.execute)
    return next(filter(is_user_mode, names), "")


def even_flow(plan: Plan, route: Route, total: int) -> EvenFlow:
    """The flow of an even batch of `total` samples on a route."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    giver, taker = ends_of(plan, route)
    return EvenFlow(
        giver.mesh,
        taker.mesh,
        total,
        COLLECT[route.collect],
        EXECUTE[source.execute],
        DISPATCH[route.dispatch.mode],
        EXECUTE[target.execute],
    )


def _flow(plan: Plan, route: Route) -> Flow:
    source, target = plan.stage(route.source), plan.stage(route.target)
    giver, taker = ends_of(plan, route)
    speak, hear, cut = giver.mesh.world_size, taker.mesh.world_size, 1
    if route.kind == "data":
        collect, called = COLLECT.get(route.collect), EXECUTE.get(source.execute)
        mode, execute = DISPATCH.get(route.dispatch.mode), EXECUTE.get(target.execute)
        speak = producer_set(collect, called).count(giver.mesh) if collect and called else 0
        hear = execute.workers.count(taker.mesh) if execute else 0
        cut = part_count(taker.mesh, execute, mode, speak) if execute and mode and speak else hear
    samples = source.samples if carries_samples(plan, route) else 0
    return Flow(
        name=route.name,
        source=route.source,
        target=route.target,
        parameter=route.parameter,
        kind=route.kind,
        collect=route.collect,
        dispatch=route.dispatch,
        slots=route.slots,
        giver=giver.name,
        taker=taker.name,
        speakers=speak,
        hearers=hear,
        shares=cut,
        samples=samples,
        bytes=samples * source.sample_bytes,
        over="process" if _stays(plan, route, giver, taker) else _over(plan, giver.group, taker.group),
    )


def _stays(plan: Plan, route: Route, giver: Component, taker: Component) -> bool:
    """Whether each worker takes what it has given itself, of an even batch."""
    workers, dispatch = giver.mesh.world_size, route.dispatch
    if giver.group != taker.group or workers == 1 or route.kind == "weights":
        return giver.group == taker.group and (workers == 1 or giver.mesh == taker.mesh)
    if user_mode(plan, route):
        return False
    flow = even_flow(plan, route, 0)
    if flow.execute.is_single:
        return flow.producers == 1 and flow.ranks_of(0, 0).first == (flow.producer_rank(0),)
    cut = part_count(taker.mesh, flow.execute, flow.mode, flow.producers)
    if not flow.producers == cut == workers or dispatch.balance or dispatch.home:
        return False
    # Ranks count two dims at most here, dp and fsdp, in one order or the other: where rank 1 is the same at
    # both ends, all are.
    received = 1 if flow.execute.is_per_producer else flow.share_of(1)
    return flow.producer_set.index_of(giver.mesh, 1) == received


def _over(plan: Plan, giver: str, taker: str) -> Over:
    runs = [*plan.node_runs_of(giver), *plan.node_runs_of(taker)]
    return over(plan, giver, taker, near=max(stop for _, stop in runs) - min(start for start, _ in runs) == 1)


def over(plan: Plan, giver: str, taker: str, *, near: bool) -> Over:
    """Between workers of two groups, or of one; `near` if all of them are on one node."""
    types = {plan.group(name).device_type for name in (giver, taker)}
    if len(types) == 1 and types <= {*DIRECT}:
        return "device" if near else "devices"
    return "node" if near else "nodes"
