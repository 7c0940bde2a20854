"""MC320 and MC42x: what is right and costs more than it must. Warnings: devices that idle, and process groups
across nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Component, DeviceGroup, Recipe, Sizes
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted
from meshctl.topology.allocation import Allocation, DeviceRanges, allocate, device_count, first_split_worker
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError
from meshctl.topology.placement import NodeRun, node_runs, span_nodes
from meshctl.topology.sizes import divisors

SHOWN = 3
"""So many places or groups are listed."""
WITHIN = {"tp": "MC420", "ep": "MC421", "etp": "MC422"}
"""Dims whose process groups speak within every layer, so that they belong inside a node."""


# Devices that idle


def idle_devices(facts: Facts) -> Iterator[Diagnostic]:
    """All devices that `cluster` says are there belong to a group."""
    placed = facts.allocation
    if placed is None or placed.beyond or not _as_wanted(facts, placed):
        return
    for kind in placed.cluster.devices_per_node:
        idle, total = _idle(facts.recipe, placed, kind), placed.cluster.total(kind)
        if kind == "mps" and any(each > 1 for _, each in placed.cluster.devices_per_node[kind]):
            continue  # no machine has a second one, so nobody knows how many there are
        if not facts.recipe.cluster.devices_of(kind) or not idle:
            continue
        groups = [group for group in facts.recipe.groups.values() if group.device_type == kind]
        says = tuple(_takes(facts, group) for group in groups[:SHOWN])
        are = "is" if device_count(idle) == 1 else "are"
        message = f"{device_count(idle)} of {total} {kind} devices {are} used by no group: {_where(idle, placed.cluster, kind)}"
        span = facts.cluster_value("devices_per_node", *_named(facts.recipe, kind))
        yield Diagnostic("MC320", message, span, says, _help(facts.recipe, kind, placed), "warning")


def _as_wanted(facts: Facts, placed: Allocation) -> bool:
    """Whether every group has what it wants; else a rule says so."""
    groups = [group for group in facts.recipe.groups.values() if group.device_type != "cpu"]
    return all(group.devices == device_count(placed.devices[group.name]) for group in groups)


def _idle(recipe: Recipe, placed: Allocation, kind: str) -> DeviceRanges:
    """The devices of a type that are in no group."""
    used = sorted(
        run
        for name, runs in placed.devices.items()
        for run in runs
        if recipe.groups[name].device_type == kind
    )
    idle: list[tuple[int, int]] = []
    end = 0
    for start, stop in [*used, (total := placed.cluster.total(kind), total)]:
        if start > end:
            idle.append((end, start))
        end = max(end, stop)
    return tuple(idle)


def _takes(facts: Facts, group: DeviceGroup) -> Span:
    return facts.value("groups", group.name, "ranks").with_word(
        f"`{group.name}` takes {counted(group.devices, 'device')}"
    )


def _where(idle: DeviceRanges, cluster: Cluster, kind: str) -> str:
    """`4-7 of node 0, number 3 of node 1, all 8 of nodes 2-5`."""
    pieces = [piece for start, stop in idle for piece in cluster.pieces(kind, start, stop)]
    said = []
    for piece in pieces[:SHOWN]:
        whole = piece.each == cluster.devices_on(kind, piece.first_node)
        numbers = (
            f"all {piece.each}"
            if whole and piece.each > 1
            else "number " * (piece.each == 1) + _span(piece.number, piece.each)
        )
        said.append(
            f"{numbers} of {'node' if piece.nodes == 1 else 'nodes'} {_span(piece.first_node, piece.nodes)}"
        )
    return ", ".join([*said, *(["..."] if len(pieces) > SHOWN else [])])


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _named(recipe: Recipe, kind: str) -> tuple[str, ...]:
    """The key below `devices_per_node`, where it says types by name."""
    return (kind,) if kind in recipe.cluster.named else ()


def _help(recipe: Recipe, kind: str, placed: Allocation) -> str:
    """A cluster without these devices, where a smaller number makes it."""
    said, cluster = recipe.cluster, placed.cluster
    last = max(
        (
            stop
            for name, runs in placed.devices.items()
            for _, stop in runs
            if recipe.groups[name].device_type == kind
        ),
        default=0,
    )
    if not last:
        return f"give them to a group, or leave `{kind}` out of `cluster.devices_per_node`"
    smaller = replace(said, nodes=cluster.node_of(kind, last - 1) + 1)
    key, number = "nodes", smaller.nodes
    if cluster.nodes == 1 and said.devices_of(kind) == cluster.total(kind):
        key, number = ".".join(("devices_per_node", *_named(recipe, kind))), last
        given = {**said.devices_per_node, kind: last} if isinstance(said.devices_per_node, Mapping) else last
        smaller = replace(said, devices_per_node=given)
    there = allocate(recipe.groups, smaller)
    left, idle = device_count(_idle(recipe, there, kind)), device_count(_idle(recipe, placed, kind))
    if there.beyond or left >= idle:
        return "give them to a group, or take them out of `cluster`"
    return f"give them to a group, or say `cluster.{key}: {number}`{f', which leaves {left}' if left else ''}"


# Process groups across nodes


@dataclass(frozen=True)
class Seated:
    """A group and its devices."""

    name: str
    device_type: str
    workers: int
    devices: DeviceRanges
    gpus_per_worker: int


def inside_nodes(facts: Facts) -> Iterator[Diagnostic]:
    """The process groups that speak within every layer stay inside a node."""
    for name, component in facts.recipe.components.items():
        mesh, sizes = facts.meshes.get(name), component.parallel
        if mesh is None or not isinstance(sizes, Sizes) or not any(mesh.size(dim) > 1 for dim in WITHIN):
            continue
        seats = _seats(facts.allocation, facts.recipe.groups[component.group])
        for dim, code in WITHIN.items() if len(seats) > 1 or (seats and seats[0].nodes > 1) else ():
            if mesh.size(dim) > 1 and (reach := span_nodes(seats, mesh, dim)) != "inside":
                yield _crosses(facts, component, mesh, seats, dim, code, reach)


def _seats(placed: Allocation | None, group: DeviceGroup) -> tuple[NodeRun, ...]:
    """Where its workers are; nothing where that is wrong or not known."""
    if placed is None or group.name in placed.beyond:
        return ()
    runs, cluster = placed.devices[group.name], placed.cluster
    on_devices = group.device_type != "cpu"
    if on_devices and (
        device_count(runs) != group.devices
        or first_split_worker(runs, group.gpus_per_worker, cluster, group.device_type) is not None
    ):
        return ()
    return node_runs(
        Seated(group.name, group.device_type, group.workers, runs, group.gpus_per_worker), cluster
    )


def _crosses(
    facts: Facts,
    component: Component,
    mesh: DeviceMesh,
    seats: tuple[NodeRun, ...],
    dim: str,
    code: str,
    reach: str,
) -> Diagnostic:
    size, groups = mesh.size(dim), mesh.world_size // mesh.size(dim)
    which = "the only" if groups == 1 else "all" if reach == "all" else "some of the"
    noun = (
        f"{dim} group of `{component.name}` crosses"
        if groups == 1
        else f"{groups} {dim} groups of `{component.name}` cross"
    )
    span = facts.value("components", component.name, "parallel", f"{dim}_size").with_word(
        f"groups of {size} ranks"
    )
    says = facts.value("groups", component.group, "ranks").with_word(
        f"`{component.group}` has {_on_a_node(seats)} on a node"
    )
    help = _inside(facts, component, mesh, seats, dim)
    return Diagnostic(code, f"{which} {noun} nodes", span, (says,), help, "warning")


def _on_a_node(seats: Sequence[NodeRun]) -> str:
    """`4 to 8 ranks`."""
    steps: dict[int, int] = {}
    for stretch in seats:
        for node, more in ((stretch.first_node, stretch.each), (stretch.last_node + 1, -stretch.each)):
            steps[node] = steps.get(node, 0) + more
    counts = {count for count in accumulate(steps[node] for node in sorted(steps)) if count}
    return counted(max(counts), "rank") if len(counts) == 1 else f"{min(counts)} to {max(counts)} ranks"


def _inside(
    facts: Facts, component: Component, mesh: DeviceMesh, seats: tuple[NodeRun, ...], dim: str
) -> str:
    """What to write for groups that stay inside a node: the nearest layout, or the group where a node begins."""
    options = (
        [f"write group `{component.group}` first"] if _if_first(facts, component.group, mesh, dim) else []
    )
    for sizes, order in _nearer(mesh, dim):
        nearer = _with_sizes(mesh, sizes, order)
        if nearer is not None and span_nodes(seats, nearer, dim) == "inside":
            drawn = (
                layout(nearer) if dim in DIMS else " x ".join(f"{dim} {size}" for dim, size in sizes.items())
            )
            usual = " without `order`" if order != mesh.mesh_dim_names else ""
            options.insert(0, f"nearest that stays inside a node: {drawn}{usual}")
            break
    return "; or ".join(options)


def _nearer(mesh: DeviceMesh, dim: str) -> Iterator[tuple[dict[str, int], Sequence[str]]]:
    """Smaller sizes of a dim, the largest first; ep shrinks with etp, which is within it."""
    inner = divisors(mesh.etp_size) if dim == "ep" and mesh.etp_size > 1 else []
    sizes = [{dim: size} for size in divisors(mesh.size(dim))]
    if inner:
        sizes = [{dim: size, "etp": etp} for size in divisors(mesh.size(dim)) for etp in inner]
    for some in sorted(sizes, key=lambda some: (-prod(some.values()), -some[dim])):
        yield from ((some, order) for order in dict.fromkeys((mesh.mesh_dim_names, DIMS)))


def _if_first(facts: Facts, name: str, mesh: DeviceMesh, dim: str) -> bool:
    """Whether the process groups would stay inside a node if the group got the first devices."""
    recipe = facts.recipe
    group = recipe.groups[name]
    if group.device_type == "cpu" or isinstance(group.ranks, tuple) or group.colocate:
        return False
    there = allocate({name: group, **recipe.groups}, recipe.cluster)
    if there.beyond or there.devices[name] == (facts.allocation.devices[name] if facts.allocation else ()):
        return False
    return span_nodes(_seats(there, group), mesh, dim) == "inside"


def _with_sizes(mesh: DeviceMesh, sizes: Mapping[str, int], order: Sequence[str]) -> DeviceMesh | None:
    """The mesh with its dims in this order and these smaller, and dp, or fsdp where there is no dp, larger in
    their place."""
    rest = "fsdp" if mesh.size("fsdp") > 1 and mesh.size("dp") == 1 else "dp"
    room = prod(mesh.size(dim) // size for dim, size in sizes.items() if dim in DIMS)
    try:
        return changed(mesh, order, {rest: mesh.size(rest) * room, **sizes})
    except MeshError:
        return None


def changed(
    mesh: DeviceMesh, order: Sequence[str], sizes: Mapping[str, int] = MappingProxyType({})
) -> DeviceMesh:
    """The mesh with its dims in another order, and with other sizes."""
    given: dict[str, Any] = {f"{dim}_size": mesh.size(dim) for dim in (*DIMS, "ulysses", "ep", "etp")}
    given |= {f"{dim}_size": size for dim, size in sizes.items()}
    return DeviceMesh.from_sizes(order=order, vpp_size=mesh.vpp_size, **given)


def layout(mesh: DeviceMesh) -> str:
    """`dp 2 x tp 4`, outermost first."""
    return (
        " x ".join(
            f"{dim} {size}" for dim, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True) if size > 1
        )
        or "one rank"
    )


RULES = (idle_devices, inside_nodes)
