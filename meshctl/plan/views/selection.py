"""One part of a plan more closely, as data: what a picture of the whole has no room for.

    component   its mesh, its process groups one by one, the stages and routes that it has a part in
    dim         the process groups along it, one by one, in every component that has it
    node        its devices and processes, and what runs in each
    rank        where it is, its coordinates, its groups and peers, its samples, whom it talks to
                (`rank_zoom.py`)

What is long is folded to its first ones and the last, so nothing grows with the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from meshctl.plan.model import Plan
from meshctl.plan.views.rank_selection import RankZoom as RankZoom
from meshctl.plan.views.rank_selection import crosses, missing, numbers_on_node, says_more
from meshctl.plan.views.rank_selection import of_rank as of_rank
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
from meshctl.topology.mesh import DIMS, VIEWS, DeviceMesh

GROUPS = 16
"""So many process groups of a dim are shown one by one."""
WORKERS = 64
"""So many processes of a group are shown one by one, on a node."""


# Process groups one by one


@dataclass(frozen=True)
class GroupAt:
    """One process group along a dim."""

    number: int
    """Among those of the dim, in the order in which every rank makes them."""
    at: Mapping[str, int]
    """What its ranks have in common: their indices in the other dims above 1."""
    ranks: Ranks
    crosses: bool
    """Whether its ranks are on more than one node."""


@dataclass(frozen=True)
class DimOfComponent:
    """All process groups of one component along a dim."""

    component: str
    letter: str
    group: str
    facts: ProcessGroups
    groups: tuple[GroupAt, ...]
    """One by one; where there are more than sixteen, the first fifteen and the last."""


@dataclass(frozen=True)
class DimZoom:
    dim: str
    components: tuple[DimOfComponent, ...]
    """Those in which it is above 1."""
    kind: Literal["dim"] = "dim"
    format: int = FORMAT


@dataclass(frozen=True)
class MeshDim:
    name: str
    size: int
    stride: int | None
    """None where it is not even."""
    view: str = ""
    """`data` or `expert` where it is of a view of the mesh."""


@dataclass(frozen=True)
class ComponentZoom:
    component: PlacedComponent
    group: PlacedGroup
    dims: tuple[MeshDim, ...]
    """All of the mesh's, outermost first, then those of its views that say more."""
    beside: tuple[str, ...]
    """The other components in the same processes."""
    process_groups: tuple[DimOfComponent, ...]
    stages: tuple[PlacedStage, ...]
    """That it runs, or takes weights in."""
    routes: tuple[Flow, ...]
    kind: Literal["component"] = "component"
    format: int = FORMAT


@dataclass(frozen=True)
class Process:
    """One worker on a node."""

    group: str
    rank: int
    place: int
    local_rank: int
    devices: tuple[int, ...]
    """Numbers on the node."""
    coordinates: Mapping[str, Mapping[str, int]]
    """By component: its indices in the dims above 1."""


@dataclass(frozen=True)
class NodeZoom:
    node: int
    nodes: int
    """How many there are."""
    alike: tuple[tuple[int, int], ...]
    """The nodes that look like it, itself too, as runs [start, stop)."""
    cells: tuple[Cell, ...]
    first_devices: Mapping[str, int]
    """By type: what the first device of the node is called in the cluster."""
    processes: tuple[Process, ...]
    """Of each group the first 64."""
    counts: Mapping[str, int]
    """How many processes each group has here."""
    kind: Literal["node"] = "node"
    format: int = FORMAT


Zoom = ComponentZoom | DimZoom | NodeZoom | RankZoom


def of_component(plan: Plan, drawn: Topology, name: str) -> ComponentZoom:
    component = _component(drawn, name)
    return ComponentZoom(
        component=component,
        group=next(group for group in drawn.groups if group.name == component.group),
        dims=tuple(_dims(component.mesh)),
        beside=tuple(
            other.name for other in drawn.components if other.group == component.group and other.name != name
        ),
        process_groups=tuple(_one_by_one(plan, component, facts) for facts in component.process_groups),
        stages=tuple(stage for stage in drawn.stages if name in (stage.component, stage.to)),
        routes=tuple(route for route in drawn.routes if name in (route.giver, route.taker)),
    )


def _component(drawn: Topology, name: str) -> PlacedComponent:
    found = next((component for component in drawn.components if component.name == name), None)
    if found is None:
        raise missing("component", name, [component.name for component in drawn.components])
    return found


def _dims(mesh: DeviceMesh) -> Iterator[MeshDim]:
    for dim in mesh.mesh_dim_names:
        yield MeshDim(dim, mesh.size(dim), mesh.stride(dim))
    for view, dims in VIEWS.items():
        if says_more(mesh, view):
            yield from (MeshDim(dim, mesh.size(dim), mesh.stride(dim), view) for dim in dims)


def of_dim(plan: Plan, drawn: Topology, dim: str, component: str = "") -> DimZoom:
    """In every component that has it, or in one."""
    asked = [_component(drawn, component)] if component else list(drawn.components)
    known = dict.fromkeys(
        [
            *DIMS,
            *VIEWS["data"],
            *VIEWS["expert"],
            *(name for each in asked for name in each.mesh.mesh_dim_names),
        ]
    )
    if dim not in known:
        raise missing("dim", dim, list(known))
    found = [each for each in asked if each.mesh.size(dim) > 1]
    if not found:
        above = list(dict.fromkeys(facts.dim for each in asked for facts in each.process_groups))
        there = (
            f"above 1 {'is' if len(above) == 1 else 'are'} {listed(above)}" if above else "no dim is above 1"
        )
        raise ZoomError(
            f"`{dim}` is 1 {f'in component `{component}`' if component else 'in every component'}; {there}"
        )
    return DimZoom(dim, tuple(_one_by_one(plan, each, _facts(plan, each, dim)) for each in found))


def _facts(plan: Plan, component: PlacedComponent, dim: str) -> ProcessGroups:
    known = next((facts for facts in component.process_groups if facts.dim == dim), None)
    return known or process_groups(component.mesh, dim, plan.node_runs(component.group))


def _one_by_one(plan: Plan, component: PlacedComponent, facts: ProcessGroups) -> DimOfComponent:
    home = _home(component.mesh, facts.dim)
    others = {dim: home.size(dim) for dim in home.mesh_dim_names if dim != facts.dim and home.size(dim) > 1}

    def group(number: int) -> GroupAt:
        left, at = number, dict.fromkeys(others, 0)
        for dim in reversed(others):
            left, at[dim] = divmod(left, others[dim])
        ranks = along(home, (facts.dim,), home.rank(at))
        return GroupAt(number, at, ranks, crosses(plan, component, facts.dim, ranks))

    shown = range(facts.count) if facts.count <= GROUPS else [*range(GROUPS - 1), facts.count - 1]
    return DimOfComponent(component.name, component.letter, component.group, facts, tuple(map(group, shown)))


def _home(mesh: DeviceMesh, dim: str) -> DeviceMesh:
    """The mesh that has a dim: itself, or a view."""
    view = next((view for view, dims in VIEWS.items() if dim in dims), "")
    return mesh.view(view) if view else mesh


def of_node(plan: Plan, drawn: Topology, node: int) -> NodeZoom:
    if not 0 <= node < plan.cluster.nodes:
        there = (
            f"there are the nodes 0 to {plan.cluster.nodes - 1}"
            if plan.cluster.nodes > 1
            else "there is node 0 alone"
        )
        raise ZoomError(f"there is no node {node}; {there}")
    kind = next(kind for kind in drawn.nodes if any(start <= node < stop for start, stop in kind.nodes))
    counts = {group.name: count for group in plan.groups if (count := _count(plan, group.name, node))}
    return NodeZoom(
        node=node,
        nodes=plan.cluster.nodes,
        alike=kind.nodes,
        cells=kind.cells,
        first_devices={kind: plan.cluster.first_on(kind, node) for kind in plan.cluster.devices_per_node},
        processes=tuple(process for name in counts for process in _processes(plan, name, node)),
        counts=counts,
    )


def _count(plan: Plan, group: str, node: int) -> int:
    return sum(
        stretch.each for stretch in plan.node_runs(group) if stretch.first_node <= node <= stretch.last_node
    )


def _processes(plan: Plan, group: str, node: int) -> Iterator[Process]:
    for worker in islice(plan.workers(group, node), WORKERS):
        coordinates = {
            component.name: {
                dim: index
                for dim, index in component.mesh.coordinate(worker.rank).items()
                if component.mesh.size(dim) > 1
            }
            for component in plan.components_of(group)
        }
        yield Process(
            group, worker.rank, worker.place, worker.local_rank, numbers_on_node(plan, worker), coordinates
        )
