"""MC320 and MC42x: warnings about layouts that are correct but waste resources: devices that no group uses,
and process groups that span nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.allocation import Allocation
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.meshes import Placed
from meshctl.text.english import counted
from meshctl.topology.cluster import Cluster
from meshctl.topology.device_ranges import clipped, device_count, gaps_between
from meshctl.topology.mesh import DIMS
from meshctl.topology.placement import NodeRun, node_runs, span_nodes
from meshctl.topology.sizes import divisors

MAX_SHOWN = 3
"""Maximum number of groups that are listed."""
CODES = {"tp": "MC420", "ep": "MC421", "etp": "MC422"}
"""Dims whose process groups communicate within every layer and therefore should not span nodes -> code of
the warning."""


# Idle devices


def devices_are_used(facts: Facts) -> Iterator[Diagnostic]:
    """Every device in `cluster` belongs to a group. Another rule reports a group that lacks devices."""
    allocation, recipe, groups = facts.allocation, facts.recipe, [*facts.recipe.groups.values()]
    if allocation is None or allocation.beyond:
        return
    if any(
        one.device_type != "cpu" and one.devices != device_count(allocation.devices[one.name])
        for one in groups
    ):
        return
    for kind, per_node in allocation.cluster.devices_per_node.items():
        own = [one.name for one in groups if one.device_type == kind]
        taken = sorted(some for name in own for some in allocation.devices[name])
        total = allocation.cluster.total(kind)
        idle = tuple(clipped(gaps_between(taken), 0, total))
        # A machine has at most one mps device, so a larger number is unreliable.
        is_counted = kind != "mps" or all(each <= 1 for _, each in per_node)
        if not idle or not is_counted or not recipe.cluster.devices_of(kind):
            continue
        takes = {one.name: counted(one.devices, "device") for one in groups if one.device_type == kind}
        seconds = tuple(
            facts.value("groups", name, "ranks").with_word(f"`{name}` takes {devices}")
            for name, devices in [*takes.items()][:MAX_SHOWN]
        )
        are = "is" if device_count(idle) == 1 else "are"
        cluster, first = allocation.cluster, idle[0][0]
        message = f"{device_count(idle)} of {total} {kind} devices {are} not used by any group"
        span, node = _stated(facts, kind, first, cluster), cluster.node_of(kind, first)
        help = "give them to a group, or remove them from `cluster`"
        yield Diagnostic("MC320", f"{message}, the first on node {node}", span, seconds, help, "warning")


def _stated(facts: Facts, kind: str, device: int, cluster: Cluster) -> Span:
    """Returns the span of the value to which a device belongs: in its node pool, or in `devices_per_node`."""
    node = cluster.node_of(kind, device)
    for pool in facts.recipe.cluster.nodes_by_pool:
        if node < pool.count:
            return facts.value("cluster", "nodes", pool.name, "devices")
        node -= pool.count
    return facts.cluster_value("devices_per_node", *([kind] if kind in facts.recipe.cluster.named else []))


# Process groups that span nodes


def process_groups_stay_on_node(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """Process groups that communicate within every layer do not span nodes."""
    mesh, group = one.mesh, facts.recipe.groups[one.component.group]
    dims = [dim for dim in CODES if mesh.size(dim) > 1 and one.owner == one.name]
    runs = _node_runs(facts.allocation, group) if dims else ()
    if not runs or (len(runs) == 1 and runs[0].nodes == 1):
        return
    counts = sorted({run.each for run in runs})
    ranks = counted(counts[0], "rank") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} ranks"
    second = facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {ranks} on a node")
    for dim in dims:
        reach, size, count = span_nodes(runs, mesh, dim), mesh.size(dim), mesh.world_size // mesh.size(dim)
        if reach == "inside":
            continue
        message = f"the only {dim} group of `{one.name}` crosses nodes"
        if count > 1:
            which = "all" if reach == "all" else "some of the"
            message = f"{which} {count} {dim} groups of `{one.name}` cross nodes"
        # The groups of tp and of the expert dims are consecutive ranks, unless `order` changes that; etp is
        # inside ep.
        inner = mesh.etp_size if dim == "ep" else 1
        sizes = [part for part in divisors(size) if gcd(*counts) % (part * inner) == 0]
        usual = " without `order`" if mesh.mesh_dim_names != DIMS else ""
        help = f"`{dim}_size: {sizes[-1]}`{usual} stays inside a node" if sizes else ""
        span = one.span(f"{dim}_size").with_word(f"groups of {size} ranks")
        yield Diagnostic(CODES[dim], message, span, (second,), help, "warning")


def _node_runs(allocation: Allocation | None, group: DeviceGroup) -> tuple[NodeRun, ...]:
    """Returns the placement of a group's workers on nodes; empty if it is wrong or unknown."""
    if allocation is None or group.name in allocation.beyond:
        return ()
    devices, each = allocation.devices[group.name], group.gpus_per_worker
    if group.device_type != "cpu" and device_count(devices) != group.devices:
        return ()
    nodes = allocation.nodes.get(group.name, ())
    own = group.workers, devices, each, nodes
    try:
        return node_runs(allocation.cluster, group.device_type, *own)
    except ValueError:
        return ()
