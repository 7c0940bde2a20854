"""One part of a plan, as data, with details for which a picture of the whole plan has no space.

    component   its mesh, each of its process groups, its stages and routes
    dim         each process group along the dim, in every component that has the dim
    node        its devices and processes
    rank        its location, coordinates, peers, samples and the ranks it exchanges batches with (`rank.py`)

Long lists contain only their first items and the last, so the size of a part does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.plan.views.rank import RankZoom as RankZoom
from meshctl.plan.views.rank import crosses, missing, numbers_on_node, of_rank, refactors
from meshctl.plan.views.topology import (
    FORMAT,
    Cell,
    Flow,
    PlacedComponent,
    PlacedGroup,
    PlacedStage,
    ProcessGroups,
    Topology,
    ZoomError,
    process_groups,
)
from meshctl.text.english import listed
from meshctl.topology.flows import Ranks, along
from meshctl.topology.mesh import DIMS, VIEWS

MAX_GROUPS = 16
"""The largest number of process groups of a dim that are listed."""
MAX_PROCESSES = 64
"""The largest number of processes of a group that are listed for one node."""


@dataclass(frozen=True)
class Selection:
    """The part of a plan that a user selects. Without values it is the whole plan."""

    component: str = ""
    dim: str = ""
    """A dim of `component`. If `component` is empty, the dim is selected in every component that has it."""
    node: int | None = None
    rank: tuple[str, int] | None = None
    """(group, rank)"""
    samples: int = 0
    """With `rank`: the number of samples of batches for which the recipe states none; 0 if unknown."""


@dataclass(frozen=True)
class ProcessGroup:
    number: int
    """The number of this group among those of the dim, in the order in which every rank creates them."""
    at: Mapping[str, int]
    """The common indices of its ranks in the other dims with a size above 1."""
    ranks: Ranks
    crosses: bool
    """True if its ranks are on several nodes."""


@dataclass(frozen=True)
class DimOfComponent:
    """All process groups of one component along a dim."""

    component: str
    letter: str
    group: str
    facts: ProcessGroups
    groups: tuple[ProcessGroup, ...]
    """At most `MAX_GROUPS`: the first ones and the last."""


@dataclass(frozen=True)
class DimZoom:
    dim: str
    components: tuple[DimOfComponent, ...]
    """The components in which the size of the dim is above 1."""
    kind: Literal["dim"] = "dim"
    format: int = FORMAT


@dataclass(frozen=True)
class MeshDim:
    name: str
    size: int
    stride: int | None
    """The difference of neighbouring ranks; None if it is not constant."""
    view: str = ""
    """`data` or `expert` for a dim of a view of the mesh."""


@dataclass(frozen=True)
class ComponentZoom:
    component: PlacedComponent
    group: PlacedGroup
    dims: tuple[MeshDim, ...]
    """The dims of the mesh, outermost first, then those of the views that differ from the mesh."""
    same_processes: tuple[str, ...] = field(metadata={"key": "beside"})
    """The other components in the same processes."""
    process_groups: tuple[DimOfComponent, ...]
    stages: tuple[PlacedStage, ...]
    """The stages that call the component or send weights to it."""
    routes: tuple[Flow, ...]
    kind: Literal["component"] = "component"
    format: int = FORMAT


@dataclass(frozen=True)
class Process:
    """One worker on a node."""

    group: str
    rank: int
    job_rank: int = field(metadata={"key": "place"})
    local_rank: int
    devices: tuple[int, ...]
    """The devices, numbered on the node."""
    coordinates: Mapping[str, Mapping[str, int]]
    """Component -> dim -> index, for the dims with a size above 1."""


@dataclass(frozen=True)
class NodeZoom:
    node: int
    nodes: int
    """The number of nodes of the cluster."""
    alike: tuple[tuple[int, int], ...]
    """The nodes with the same groups on the same devices, this node included, as ranges [start, stop)."""
    cells: tuple[Cell, ...]
    """The devices of the node, split where the groups on them change."""
    first_devices: Mapping[str, int]
    """Device type -> the first device of this node, numbered over the cluster."""
    processes: tuple[Process, ...]
    """At most `MAX_PROCESSES` of each group."""
    counts: Mapping[str, int]
    """The number of processes of each group on this node."""
    kind: Literal["node"] = "node"
    format: int = FORMAT


Zoom = ComponentZoom | DimZoom | NodeZoom | RankZoom


def select(plan: Plan, topology: Topology, selection: Selection) -> Zoom | None:
    """Returns the selected part, or None for the whole plan. Raises `ZoomError` if the part does not
    exist."""
    if selection.rank:
        return of_rank(plan, topology, *selection.rank, selection.samples)
    if selection.node is not None:
        return of_node(plan, topology, selection.node)
    if selection.dim:
        return of_dim(plan, topology, selection.dim, selection.component)
    return of_component(plan, topology, selection.component) if selection.component else None


# A component


def of_component(plan: Plan, topology: Topology, name: str) -> ComponentZoom:
    component = _placed(topology, name)
    mesh = component.mesh
    dims = dict.fromkeys(mesh.mesh_dim_names, "")
    dims |= {dim: view for view, names in VIEWS.items() if refactors(mesh, view) for dim in names}
    members = [other.name for other in topology.components if other.group == component.group]
    return ComponentZoom(
        component=component,
        group=next(group for group in topology.groups if group.name == component.group),
        dims=tuple(MeshDim(dim, mesh.size(dim), mesh.stride(dim), view) for dim, view in dims.items()),
        same_processes=tuple(other for other in members if other != name),
        process_groups=tuple(_one_by_one(plan, component, facts) for facts in component.process_groups),
        stages=tuple(stage for stage in topology.stages if name in (stage.component, stage.to)),
        routes=tuple(route for route in topology.routes if name in (route.producer, route.consumer)),
    )


def _placed(topology: Topology, name: str) -> PlacedComponent:
    found = next((component for component in topology.components if component.name == name), None)
    if found is None:
        raise missing("component", name, [component.name for component in topology.components])
    return found


# A dim


def of_dim(plan: Plan, topology: Topology, dim: str, name: str = "") -> DimZoom:
    components = [_placed(topology, name)] if name else list(topology.components)
    own = [each for component in components for each in component.mesh.mesh_dim_names]
    known = dict.fromkeys([*DIMS, *VIEWS["data"], *VIEWS["expert"], *own])
    if dim not in known:
        raise missing("dim", dim, list(known))
    found = [component for component in components if component.mesh.size(dim) > 1]
    if not found:
        above = list(dict.fromkeys(groups.dim for each in components for groups in each.process_groups))
        others = f"above 1 {'is' if len(above) == 1 else 'are'} {listed(above)}"
        where = f"in component `{name}`" if name else "in every component"
        raise ZoomError(f"`{dim}` is 1 {where}; {others if above else 'no dim is above 1'}")
    facts = [process_groups(each.mesh, dim, plan.node_runs(each.group)) for each in found]
    return DimZoom(dim, tuple(_one_by_one(plan, *each) for each in zip(found, facts, strict=True)))


def _one_by_one(plan: Plan, component: PlacedComponent, facts: ProcessGroups) -> DimOfComponent:
    view = next((view for view, dims in VIEWS.items() if facts.dim in dims), "")
    mesh = component.mesh.view(view) if view else component.mesh
    others = {dim: mesh.size(dim) for dim in mesh.mesh_dim_names if dim != facts.dim and mesh.size(dim) > 1}

    def group(number: int) -> ProcessGroup:
        left, at = number, dict.fromkeys(others, 0)
        for dim in reversed(others):
            left, at[dim] = divmod(left, others[dim])
        ranks = along(mesh, (facts.dim,), mesh.rank(at))
        return ProcessGroup(number, at, ranks, crosses(plan, component, facts.dim, ranks))

    numbers = range(facts.count) if facts.count <= MAX_GROUPS else [*range(MAX_GROUPS - 1), facts.count - 1]
    return DimOfComponent(
        component.name, component.letter, component.group, facts, tuple(map(group, numbers))
    )


# A node


def of_node(plan: Plan, topology: Topology, node: int) -> NodeZoom:
    cluster = plan.cluster
    if not 0 <= node < cluster.nodes:
        nodes = f"nodes are 0 to {cluster.nodes - 1}" if cluster.nodes > 1 else "only node is 0"
        raise ZoomError(f"node {node} does not exist; the {nodes}")
    kind = next(kind for kind in topology.nodes if any(start <= node < stop for start, stop in kind.nodes))
    runs = {
        group.name: [run for run in plan.node_runs(group.name) if run.first_node <= node <= run.last_node]
        for group in plan.groups
    }
    counts = {name: sum(run.each for run in found) for name, found in runs.items() if found}
    return NodeZoom(
        node=node,
        nodes=cluster.nodes,
        alike=kind.nodes,
        cells=kind.cells,
        first_devices={each: cluster.first_on(each, node) for each in cluster.devices_per_node},
        processes=tuple(process for name in counts for process in _processes(plan, name, node)),
        counts=counts,
    )


def _processes(plan: Plan, group: str, node: int) -> Iterator[Process]:
    meshes = {component.name: component.mesh for component in plan.components_of(group)}
    for worker in islice(plan.workers(group, node), MAX_PROCESSES):
        coordinates = {
            name: {dim: index for dim, index in mesh.coordinate(worker.rank).items() if mesh.size(dim) > 1}
            for name, mesh in meshes.items()
        }
        numbers = numbers_on_node(plan, worker)
        yield Process(group, worker.rank, worker.job_rank, worker.local_rank, numbers, coordinates)
