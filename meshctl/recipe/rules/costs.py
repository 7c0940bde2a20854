"""MC320 and MC42x: warnings about layouts that are correct but waste resources: devices that no group uses,
and process groups that span nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Component, DeviceGroup, Recipe, Sizes
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted
from meshctl.topology.allocation import Allocation
from meshctl.topology.cluster import Cluster, NodeRanges
from meshctl.topology.device_ranges import DeviceRanges, device_count, first_split_worker
from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.placement import NodeRun, Reach, node_runs, span_nodes
from meshctl.topology.sizes import divisors

MAX_SHOWN = 3
"""Maximum number of groups that are listed."""
CODES = {"tp": "MC420", "ep": "MC421", "etp": "MC422"}
"""Dims whose process groups communicate within every layer and therefore should not span nodes -> code of
the warning."""


# Idle devices


def devices_are_used(facts: Facts) -> Iterator[Diagnostic]:
    """Every device in `cluster` belongs to a group."""
    allocation, recipe = facts.allocation, facts.recipe
    if allocation is None or allocation.beyond or not _are_complete(recipe, allocation):
        return
    for kind, per_node in allocation.cluster.devices_per_node.items():
        idle, total = _idle(recipe, allocation, kind), allocation.cluster.total(kind)
        # A machine has at most one mps device, so a larger number is unreliable.
        is_counted = kind != "mps" or all(each <= 1 for _, each in per_node)
        if not idle or not is_counted or not recipe.cluster.devices_of(kind):
            continue
        groups = [group for group in recipe.groups.values() if group.device_type == kind]
        seconds = tuple(
            facts.value("groups", group.name, "ranks").with_word(
                f"`{group.name}` takes {counted(group.devices, 'device')}"
            )
            for group in groups[:MAX_SHOWN]
        )
        are = "is" if device_count(idle) == 1 else "are"
        cluster, first = allocation.cluster, idle[0][0]
        message = f"{device_count(idle)} of {total} {kind} devices {are} not used by any group"
        span, node = _stated(facts, kind, first, cluster), cluster.node_of(kind, first)
        help = "give them to a group, or remove them from `cluster`"
        yield Diagnostic("MC320", f"{message}, the first on node {node}", span, seconds, help, "warning")


def _are_complete(recipe: Recipe, allocation: Allocation) -> bool:
    """Returns whether every group has all of its devices. Another rule reports a group that has not."""
    on_devices = [group for group in recipe.groups.values() if group.device_type != "cpu"]
    return all(group.devices == device_count(allocation.devices[group.name]) for group in on_devices)


def _idle(recipe: Recipe, allocation: Allocation, kind: str) -> DeviceRanges:
    """Returns the devices of a type that no group uses."""
    total, end = allocation.cluster.total(kind), 0
    names = [name for name in allocation.devices if recipe.groups[name].device_type == kind]
    idle: list[tuple[int, int]] = []
    for start, stop in [*sorted(some for name in names for some in allocation.devices[name]), (total, total)]:
        if start > end:
            idle.append((end, start))
        end = max(end, stop)
    return tuple(idle)


def _stated(facts: Facts, kind: str, device: int, cluster: Cluster) -> Span:
    """Returns the span of the value to which a device belongs: in its node pool, or in `devices_per_node`."""
    node = cluster.node_of(kind, device)
    for pool in facts.recipe.cluster.nodes_by_pool:
        if node < pool.count:
            return facts.value("cluster", "nodes", pool.name, "devices")
        node -= pool.count
    return facts.cluster_value("devices_per_node", *([kind] if kind in facts.recipe.cluster.named else []))


# Process groups that span nodes


@dataclass(frozen=True)
class AllocatedGroup:
    """A group with its devices."""

    name: str
    device_type: str
    workers: int
    devices: DeviceRanges
    gpus_per_worker: int
    nodes: NodeRanges


def process_groups_stay_on_node(facts: Facts) -> Iterator[Diagnostic]:
    """Process groups that communicate within every layer do not span nodes."""
    for name, component in facts.recipe.components.items():
        mesh = facts.meshes.get(name)
        if mesh is None or not isinstance(component.parallel, Sizes):
            continue
        dims = [dim for dim in CODES if mesh.size(dim) > 1]
        runs = _node_runs(facts.allocation, facts.recipe.groups[component.group]) if dims else ()
        is_one_node = len(runs) == 1 and runs[0].nodes == 1
        for dim in dims if runs and not is_one_node else ():
            reach = span_nodes(runs, mesh, dim)
            if reach != "inside":
                yield _spans_nodes(facts, component, mesh, runs, dim, reach)


def _node_runs(allocation: Allocation | None, group: DeviceGroup) -> tuple[NodeRun, ...]:
    """Returns the placement of a group's workers on nodes; empty if it is wrong or unknown."""
    if allocation is None or group.name in allocation.beyond:
        return ()
    devices, cluster, each = allocation.devices[group.name], allocation.cluster, group.gpus_per_worker
    if group.device_type != "cpu":
        is_complete = device_count(devices) == group.devices
        if not is_complete or first_split_worker(devices, each, cluster, group.device_type) is not None:
            return ()
    nodes = allocation.nodes.get(group.name, ())
    return node_runs(
        AllocatedGroup(group.name, group.device_type, group.workers, devices, each, nodes), cluster
    )


def _spans_nodes(
    facts: Facts, component: Component, mesh: DeviceMesh, runs: Sequence[NodeRun], dim: str, reach: Reach
) -> Diagnostic:
    size, count, name = mesh.size(dim), mesh.world_size // mesh.size(dim), component.name
    message = f"the only {dim} group of `{name}` crosses nodes"
    if count > 1:
        which = "all" if reach == "all" else "some of the"
        message = f"{which} {count} {dim} groups of `{name}` cross nodes"
    span = facts.value("components", name, "parallel", f"{dim}_size").with_word(f"groups of {size} ranks")
    counts = sorted({run.each for run in runs})
    ranks = counted(counts[0], "rank") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} ranks"
    second = facts.value("groups", component.group, "ranks").with_word(
        f"`{component.group}` has {ranks} on a node"
    )
    help = _how_to_stay(mesh, counts, dim)
    return Diagnostic(CODES[dim], message, span, (second,), help, "warning")


def _how_to_stay(mesh: DeviceMesh, counts: Sequence[int], dim: str) -> str:
    """Returns help that proposes the largest size whose process groups do not span nodes. Those of tp and of
    the expert dims are consecutive ranks, unless `order` changes that."""
    sizes = [size for size in divisors(mesh.size(dim)) if _are_inside(mesh, dim, size, gcd(*counts))]
    usual = " without `order`" if mesh.mesh_dim_names != DIMS else ""
    return f"`{dim}_size: {sizes[-1]}`{usual} stays inside a node" if sizes else ""


def _are_inside(mesh: DeviceMesh, dim: str, size: int, each: int) -> bool:
    """Returns whether process groups of a size stay inside nodes of `each` ranks; etp is inside ep."""
    return each % (size * mesh.etp_size if dim == "ep" else size) == 0
