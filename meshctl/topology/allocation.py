"""Computes the devices of each group, and the smallest cluster that has enough devices.

    list       a group with a list of devices receives exactly these devices
    nodes      a group with a count and nodes receives the next free devices of these nodes
    count      a group with a count receives the next free devices, in the order of groups in the recipe
    colocate   a colocated group receives the first devices of the other group

Some neighbouring ranks of a group with a count should be close to each other, because they exchange data
within every layer. Devices are skipped so that each set of such neighbours is on one node, where the cluster
has enough devices for that. A cluster is never made larger for it.

Where the groups do not fit in this order, those with larger workers receive theirs first, and then all
distributions over the nodes are searched (`packing.py`).

Devices are numbered over the cluster, separately for each type. They are stored as ranges [start, stop) in
the order of the workers, and nodes as runs of equal nodes, so that no cost grows with the number of devices.
The only exception is a group whose workers leave some devices of every node unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from math import lcm
from typing import Protocol

from meshctl.dataclass import dataclass
from meshctl.topology.cluster import ACCELERATORS, Cluster, DevicesPerNode, NodeRanges
from meshctl.topology.demand import Demand, Groups, Ranges, end_of
from meshctl.topology.device_ranges import UNLIMITED, DeviceRanges, clipped

MAX_LINEAR_STEPS = 64
"""The number of node sizes that the search for the smallest node tries one by one before it uses larger
steps."""


class Hardware(Protocol):
    """The statements of a recipe about the cluster."""

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 if it is unknown."""

    @property
    def named(self) -> tuple[str, ...]:
        """The device types that the cluster has, whether or not a group uses them."""

    @property
    def pools(self) -> tuple[tuple[str, int], ...]:
        """(name, number of nodes) of each node pool."""

    def devices_of(self, device_type: str) -> int | DevicesPerNode:
        """Returns the devices per node: one number for all nodes, or runs of equal nodes; 0 if unknown. If
        the recipe does not distinguish types, the result is the same for every name, including ""."""

    def ranges_of(self, nodes: tuple[int | str, ...]) -> NodeRanges:
        """Returns the nodes that a group names. Unknown names are left out."""


Neighbours = tuple[int, ...]
"""Numbers of ranks that should be on one node, the most important one first."""


@dataclass(frozen=True)
class Allocation:
    cluster: Cluster
    devices: Mapping[str, DeviceRanges]
    """The devices of each group; empty on cpu."""
    beyond: Mapping[str, int] = field(default_factory=dict)
    """Group -> its lowest device number that the cluster does not have. Groups without such a device are
    absent."""
    nodes: Mapping[str, NodeRanges] = field(default_factory=dict)
    """The nodes of each cpu group that names some."""


def allocate(groups: Groups, hardware: Hardware, neighbours: Mapping[str, Neighbours] = {}) -> Allocation:
    """Returns the devices of every group. If `hardware` does not state the number of nodes, or of devices per
    node, the smallest number that is enough for the groups is used."""
    used = {group.device_type for group in groups.values()}
    types = [kind for kind in ACCELERATORS if kind in used or kind in hardware.named]
    on = {name: hardware.ranges_of(group.nodes) for name, group in groups.items() if group.nodes}
    nodes = hardware.nodes or _node_count(groups, hardware, types, on)
    on = {name: tuple(clipped(named, 0, nodes)) for name, named in on.items()}
    cluster = Cluster(nodes, {}, hardware.pools)
    ranges: dict[str, DeviceRanges] = dict.fromkeys(groups, ())
    for kind in types:
        given = hardware.devices_of(kind) or least_per_node(groups, kind, nodes, on)
        per_node = ((nodes, given),) if isinstance(given, int) else given
        cluster = replace(cluster, devices_per_node={**cluster.devices_per_node, kind: per_node})
        ranges |= _close(Demand(groups, kind, per_node, on), neighbours)
    placed = {name: nodes for name, nodes in on.items() if groups[name].device_type == "cpu"}
    return Allocation(cluster, ranges, dict(_beyond(groups, cluster, ranges)), placed)


def _close(demand: Demand, neighbours: Mapping[str, Neighbours]) -> Ranges:
    """Returns the devices of the groups of one type. Neighbours are kept inside a node, in the order of
    preference of each group, as long as the stated nodes are enough."""
    found = demand.allocated()
    if not demand.is_met(found):
        return found
    for group in demand.counted:
        size = group.gpus_per_worker
        for ranks in neighbours.get(group.name, ()):
            larger = lcm(size, ranks * group.gpus_per_worker)
            if group.devices % larger == 0:
                closer = demand.with_neighbours(group.name, larger)
                if closer.is_met(there := closer.allocated()):
                    demand, found, size = closer, there, larger
    return found


def _node_count(
    groups: Groups, hardware: Hardware, types: Iterable[str], on: Mapping[str, NodeRanges]
) -> int:
    """Returns the inferred number of nodes: the largest number that some value states or, without such
    values, the smallest number of nodes that is enough for the groups."""
    given = {kind: hardware.devices_of(kind) for kind in (*types, *hardware.named, "")}
    stated = [sum(count for count, _ in runs) for runs in given.values() if isinstance(runs, tuple)]
    if stated:
        return max(stated)
    counts = [1, *(stop for nodes in on.values() for _, stop in nodes)]
    for kind in types:
        each = given[kind]
        if isinstance(each, int) and each:
            counts.append(_least_nodes(groups, kind, each, on, max(counts)))
    return max(counts)


def _least_nodes(groups: Groups, kind: str, each: int, on: Mapping[str, NodeRanges], least: int) -> int:
    """Returns the least number of nodes, from `least` on, of `each` devices that all groups fit on. If too
    many numbers were to be tried, it is the one for which the groups receive the next free devices."""
    usual = Demand(groups, kind, ((UNLIMITED, each),), on)
    most = -(-end_of(usual.allocated()) // each)
    for nodes in range(max(least, -(-usual.devices // each)), min(most, least + MAX_LINEAR_STEPS)):
        demand = Demand(groups, kind, ((nodes, each),), on)
        if demand.is_met(demand.allocated()):
            return nodes
    return most


def least_per_node(groups: Groups, kind: str, nodes: int, on: Mapping[str, NodeRanges] = {}) -> int:
    """Returns the least number of devices of a type per node for which all groups fit."""

    def holds(each: int) -> bool:
        demand = Demand(groups, kind, ((nodes, each),), on)
        return demand.is_met(demand.allocated())

    total = end_of(Demand(groups, kind, ((1, UNLIMITED),), {}).allocated())
    per_worker = [group.gpus_per_worker for group in groups.values() if group.device_type == kind]
    each = max([-(-total // nodes), *per_worker])
    for _ in range(MAX_LINEAR_STEPS):
        if holds(each):
            return each
        each += 1
    too_small, step = each - 1, 1
    while not holds(each):
        too_small, each, step = each, each + step, 2 * step
    while each - too_small > 1:
        middle = (each + too_small) // 2
        if holds(middle):
            each = middle
        else:
            too_small = middle
    return each


def _beyond(
    groups: Groups, cluster: Cluster, ranges: Mapping[str, DeviceRanges]
) -> Iterator[tuple[str, int]]:
    for name, own in ranges.items():
        total = cluster.total(groups[name].device_type)
        if outside := [max(start, total) for start, stop in own if stop > total]:
            yield name, min(outside)
