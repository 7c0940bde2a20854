"""The content of a picture of a plan, as data: the same for text, JSON and every drawing.

Except for warnings and memory, it depends on the plan alone. Its size does not grow with the number of
devices: equal nodes are one `NodeKind`, neighbouring ranks with equal nodes are one `NodeRun`, and process
groups are a count, a size and a stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from itertools import pairwise

from meshctl.dataclass import dataclass
from meshctl.plan.model import (
    NOT_STORED,
    SPARSE,
    Block,
    Cluster,
    Component,
    Group,
    Input,
    Plan,
    Stage,
    copied,
)
from meshctl.plan.node_sets import segments
from meshctl.plan.views.distances import Distance, carries_samples, distances, ends_of
from meshctl.text.english import counted
from meshctl.text.redaction import command_line
from meshctl.topology.device_ranges import merged
from meshctl.topology.memory import Memory
from meshctl.topology.mesh import VIEWS, DeviceMesh
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Route, part_count, producer_set
from meshctl.topology.placement import NodeRun, Reach, span_nodes
from meshctl.topology.take import staleness

FORMAT = 1
"""Version of the JSON."""
EXAMPLE_RANKS = 8
"""The largest number of ranks of the first process group that are listed."""


class ZoomError(ValueError):
    """The selected part does not exist; the message lists what does."""


@dataclass(frozen=True)
class Cell:
    """Neighboring devices of one node that the same groups use."""

    device_type: str
    devices: tuple[int, int]
    """[start, stop), as numbers on the node."""
    groups: tuple[str, ...]
    """The groups on these devices: several if they are colocated, none if the devices are idle."""
    each: int = 1
    """Devices per worker of the first group."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes with the same groups on the same devices."""

    nodes: tuple[tuple[int, int], ...]
    """The numbers of the nodes, as ranges [start, stop)."""
    cells: tuple[Cell, ...]
    """All devices of the node, by type and number."""
    processes: tuple[tuple[str, int], ...] = ()
    """Each CPU group with the number of its processes on each of these nodes."""


@dataclass(frozen=True)
class PlacedGroup:
    name: str
    device_type: str
    workers: int
    devices: int
    """The number of accelerators; 0 on cpu."""
    gpus_per_worker: int
    visible_devices: tuple[str, ...]
    colocate: str
    program: str
    """The command line of a group that runs a script; empty for components."""
    python: str
    """The interpreter of its workers, as the recipe names it; empty for the launcher's."""
    components: tuple[str, ...]
    nodes: int
    """The number of nodes with workers of the group."""
    node_runs: tuple[NodeRun, ...] = field(metadata={"key": "stretches"})
    pools: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """The node pools of these nodes."""


@dataclass(frozen=True)
class ProcessGroups:
    """All process groups along one dim of a component's mesh."""

    dim: str
    """A dim of the mesh or of one of its views (ulysses, ep, etp, ep_fsdp)."""
    count: int
    size: int
    stride: int | None
    """The difference of neighbouring ranks of a group; None if it is not constant."""
    example: tuple[int, ...]
    """The ranks of the first group, at most `EXAMPLE_RANKS`."""
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
    """The dims with a size above 1, outermost first: `fsdp 2 x tp 2`; or `one rank`."""
    data_size: int
    process_groups: tuple[ProcessGroups, ...]
    """The process groups along each dim with a size above 1, outermost first, then those of the views."""
    sampler: str = field(default="", metadata=SPARSE)
    """The component of the same group whose engine it calls; empty for none."""


@dataclass(frozen=True, kw_only=True)
class PlacedStage(Stage):
    inputs: tuple[Input, ...] = field(default=(), metadata=NOT_STORED)
    after: int
    """Its position in the order in which workers run stages, from 1."""


@dataclass(frozen=True, kw_only=True)
class Flow(Route):
    """A route with the numbers of its producer and consumer ranks."""

    producer: str = field(metadata={"key": "giver"})
    """The component that sends."""
    consumer: str = field(metadata={"key": "taker"})
    """The component that receives."""
    producers: int = field(metadata={"key": "speakers"})
    """The number of producer ranks; 0 if a user's mode decides it."""
    consumers: int = field(metadata={"key": "hearers"})
    """The number of consumer ranks; 0 if a user's mode decides it."""
    shares: int
    """The number of different parts of a batch that consumers have; 1 if all consumers receive the same."""
    samples: int
    """The number of samples per step; 0 if the recipe does not state it."""
    bytes: int
    """The size in bytes of these samples, counting each once; 0 if the recipe does not state it."""
    over: Distance
    """The longest of `distances`."""
    distances: tuple[Distance, ...] = field(metadata={"key": "ways"})
    """The distances between producers and the consumers of their samples, the nearest first."""


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
    """The number of devices that no group uses."""
    nodes: tuple[NodeKind, ...]
    groups: tuple[PlacedGroup, ...]
    components: tuple[PlacedComponent, ...]
    stages: tuple[PlacedStage, ...]
    routes: tuple[Flow, ...]
    warnings: tuple[Warning, ...] = ()
    format: int = FORMAT
    blocks: tuple[Block, ...] = field(default=(), metadata=SPARSE)
    ends_run: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """The sources whose data end the run, if the data of some other source do not."""
    memory: Memory = field(default=Memory(), metadata=SPARSE)
    """The bytes of models on each rank, as far as the recipe and files on this machine determine them."""

    def repeat_of(self, stage: PlacedStage) -> str:
        """Returns how often a block runs, for the first of its stages: `until it ends`. Empty
        for other stages."""
        block = next((block for block in self.blocks if block.name == stage.block), None)
        first = next((other for other in self.stages if other.block == stage.block), stage)
        if block is None or first.name != stage.name:
            return ""
        if block.take:
            further = [f"ahead {block.ahead}"] * bool(block.ahead) + [f"late {block.late}"] * bool(block.late)
            return ", ".join((f"takes {block.take}", *further))
        if block.until:
            return "until it ends"
        return f"{counted(block.times, 'round')} over {block.over} by {block.size}"

    @property
    def ages(self) -> tuple[str, ...]:
        """A sentence on each block with `take`: the greatest age of its tokens, and the most open passes."""
        found = list[str]()
        for block in (one for one in self.blocks if one.take):
            called = {stage.component for stage in self.stages if stage.block == block.name}
            called |= {one.sampler for one in self.components if one.name in called}
            of_weights = staleness(self.stages, called)
            parts = (f"max_staleness {of_weights}", f"ahead {block.ahead}", f"late {block.late}")
            age = counted(of_weights + block.ahead + block.late, "step")
            is_old = f"a token is at most {age} old when it is trained ({' + '.join(parts)})"
            most = counted((block.ahead + 1) * block.take, "pass").replace("passs", "passes")
            found.append(f"{block.name}: {is_old}; at most {most} are open")
        return tuple(found)


def topology(plan: Plan, warnings: Iterable[Warning] = (), memory: Memory = Memory()) -> Topology:
    """Returns the content of a picture of a plan."""
    nodes = tuple(_node_kinds(plan))
    components = enumerate(plan.components)
    bounding = plan.bounding_sources
    return Topology(
        name=plan.name,
        digest=plan.digest,
        cluster=plan.cluster,
        workers=plan.job_size,
        idle=sum(
            (cell.devices[1] - cell.devices[0]) * (stop - start)
            for kind in nodes
            for cell in kind.cells
            for start, stop in kind.nodes
            if not cell.groups
        ),
        nodes=nodes,
        groups=tuple(_group(plan, group) for group in plan.groups),
        components=tuple(placed_component(plan, each, letters_of(number)) for number, each in components),
        stages=tuple(PlacedStage(**vars(stage), after=after) for after, stage in enumerate(plan.stages, 1)),
        routes=tuple(_flow(plan, route) for route in plan.routes),
        warnings=tuple(warnings),
        blocks=plan.blocks,
        ends_run=bounding if len(bounding) < sum(stage.is_source for stage in plan.stages) else (),
        memory=memory,
    )


def letters_of(number: int) -> str:
    """Returns A ... Z, AA ... AZ, BA ... for 0 and the numbers after it."""
    letters = ""
    while number >= 0:
        number, last = divmod(number, 26)
        letters, number = chr(ord("A") + last) + letters, number - 1
    return letters


# Placement


def _node_kinds(plan: Plan) -> Iterator[NodeKind]:
    runs: dict[tuple[tuple[Cell, ...], tuple[tuple[str, int], ...]], list[tuple[int, int]]] = {}
    for start, stop, held in segments(plan):
        types, counts = plan.cluster.devices_per_node, {group.name: run.each for group, run in held}
        cells = tuple(cell for each in types for cell in _cells(plan, each, start, held))
        on_cpu = [group.name for group in plan.groups if group.device_type == "cpu"]
        kind = cells, tuple((name, counts[name]) for name in on_cpu if name in counts)
        runs.setdefault(kind, []).append((start, stop))
    for (cells, processes), nodes in runs.items():
        yield NodeKind(tuple(merged(nodes)), cells, processes)


def _cells(plan: Plan, kind: str, node: int, held: list[tuple[Group, NodeRun]]) -> list[Cell]:
    """Returns the devices of one type on a node, split where the groups change."""
    mine = [
        (group, run.first_device, run.first_device + run.each * group.gpus_per_worker)
        for group, run in held
        if group.device_type == kind
    ]
    edges = {0, plan.cluster.devices_on(kind, node), *(edge for _, *ends in mine for edge in ends)}
    cells: list[Cell] = []
    for start, stop in pairwise(sorted(edges)):
        here = {group.name for group, first, end in mine if first <= start < end}
        groups = [group for group in plan.groups if group.name in here]
        names, each = tuple(group.name for group in groups), groups[0].gpus_per_worker if groups else 1
        if cells and cells[-1].groups == names:
            cells[-1] = replace(cells[-1], devices=(cells[-1].devices[0], stop))
        else:
            cells.append(Cell(kind, (start, stop), names, each))
    return cells


def _group(plan: Plan, group: Group) -> PlacedGroup:
    return copied(
        PlacedGroup,
        group,
        devices=0 if group.device_type == "cpu" else group.workers * group.gpus_per_worker,
        program=command_line(group.program.argv) if group.program else "",
        python=group.program.python if group.program else group.python,
        components=tuple(component.name for component in plan.components_of(group.name)),
        nodes=sum(stop - start for start, stop in plan.node_runs_of(group.name)),
        node_runs=plan.node_runs(group.name),
        pools=tuple(plan.cluster.pools_on(plan.node_runs_of(group.name))),
    )


# Meshes


def placed_component(plan: Plan, component: Component, letter: str) -> PlacedComponent:
    mesh = component.mesh
    runs = plan.node_runs(component.group)
    own, views = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1], ["ulysses"]
    if mesh.ep_size * mesh.etp_size > 1:  # of the views, those that differ from the mesh
        views += VIEWS["expert"]
    views = [dim for dim in views if mesh.size(dim) > 1]
    return copied(
        PlacedComponent,
        component,
        letter=letter,
        layout=layout_of(mesh),
        data_size=mesh.data_size,
        process_groups=tuple(process_groups(mesh, dim, runs) for dim in (*own, *views)),
    )


def layout_of(mesh: DeviceMesh) -> str:
    """Returns the dims with a size above 1 in the order of the mesh, as text: `fsdp 2 x tp 2`; or `one
    rank`."""
    return (
        " x ".join(
            f"{dim} {size}" for dim, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True) if size > 1
        )
        or "one rank"
    )


def process_groups(mesh: DeviceMesh, dim: str, runs: tuple[NodeRun, ...]) -> ProcessGroups:
    """`runs` are the nodes on which the ranks of the group are."""
    size = mesh.size(dim)
    example = tuple(mesh.rank({dim: index}) for index in range(min(size, EXAMPLE_RANKS)))
    reach = span_nodes(runs, mesh, dim)
    return ProcessGroups(dim, mesh.world_size // size, size, mesh.stride(dim), example, reach)


# The pipeline


def _flow(plan: Plan, route: Route) -> Flow:
    source, target = plan.stage(route.source), plan.stage(route.target)
    producer, consumer = ends_of(plan, route)
    producers, consumers, parts = producer.mesh.world_size, consumer.mesh.world_size, 1
    if route.kind == "data":
        collect, called = COLLECT.get(route.collect), EXECUTE.get(source.execute)
        mode, execute = DISPATCH.get(route.dispatch.mode), EXECUTE.get(target.execute)
        producers = producer_set(collect, called).count(producer.mesh) if collect and called else 0
        consumers = execute.workers.count(consumer.mesh) if execute else 0
        parts = (
            part_count(consumer.mesh, execute, mode, producers)
            if execute and mode and producers
            else consumers
        )
    samples = source.samples if carries_samples(plan, route) else 0
    found = distances(plan, route)
    return Flow(
        **vars(route),
        producer=producer.name,
        consumer=consumer.name,
        producers=producers,
        consumers=consumers,
        shares=min(parts, consumers),
        samples=samples,
        bytes=samples * source.sample_bytes,
        over=found[-1],
        distances=found,
    )
