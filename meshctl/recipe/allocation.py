"""Computes the devices of each group, and the smallest cluster that has enough devices.

    list       a group with a list of devices receives exactly these devices
    nodes      a group with a count and nodes receives the next free devices of these nodes
    count      a group with a count receives the next free devices, in the order of groups in the recipe
    colocate   a colocated group receives the first devices of the other group

All devices of a worker are on one node. Some neighbouring ranks of a group with a count should be close to
each other, too, because they exchange data within every layer. Devices are skipped so that each set of such
neighbours is on one node, where the cluster has enough devices for that. A cluster is never made larger for
it. Where the groups do not fit in the order of the recipe, those with larger workers receive theirs first.

Devices are numbered over the cluster, separately for each type. They are stored as ranges [start, stop) in
the order of the workers, and nodes as runs of equal nodes, so that no cost grows with the number of devices.
The only exception is a group whose workers leave some devices of every node unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from math import lcm

from meshctl.dataclass import dataclass
from meshctl.recipe.meshes import NoMesh, mesh_of
from meshctl.recipe.model import Cluster as Hardware
from meshctl.recipe.model import DeviceGroup, Recipe, Sizes
from meshctl.topology.cluster import ACCELERATORS, Cluster, DevicesPerNode, NodeRanges
from meshctl.topology.device_ranges import (
    UNLIMITED,
    DeviceRanges,
    clipped,
    device_count,
    devices_on,
    first_of,
    gaps_between,
    merged,
    whole_sets,
)

MAX_STEPS = 64
"""The number of node sizes, or of numbers of nodes, that the search for the smallest one tries one by one."""
WITHIN_LAYERS = ("tp", "etp", "ep")
"""Dims whose process groups communicate within every layer, the most frequent ones first."""
CLOSE_SIZES = tuple(f"{dim}_size" for dim in (*WITHIN_LAYERS, "fsdp"))
Groups = Mapping[str, DeviceGroup]
Ranges = dict[str, DeviceRanges]
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


def allocation_of(recipe: Recipe) -> Allocation:
    """Returns the devices of every group."""
    neighbours = {name: tuple(dict.fromkeys(_neighbours(recipe, name))) for name in recipe.groups}
    return allocate(recipe.groups, recipe.cluster, neighbours)


def _neighbours(recipe: Recipe, group: str) -> Iterator[int]:
    """Yields the numbers of neighbouring ranks of a group that exchange data within every layer, and those
    that shard a replica (HSDP)."""
    meshes = []
    for component in recipe.components_of(group) if recipe.groups[group].device_type != "cpu" else ():
        layout = component.parallel
        if isinstance(layout, Sizes) and any(key in CLOSE_SIZES for key, _ in layout.given):
            with suppress(NoMesh):
                meshes.append(mesh_of(recipe, component))
    for dim in (*WITHIN_LAYERS, "fsdp"):
        for mesh in meshes:
            stride, size = mesh.stride(dim), mesh.size(dim)
            is_close = dim != "fsdp" or mesh.size("dp") > 1
            if stride and size > 1 and is_close:
                yield size * stride


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
    beyond = dict[str, int]()
    for name, own in ranges.items():
        total = cluster.total(groups[name].device_type)
        if outside := [max(start, total) for start, stop in own if stop > total]:
            beyond[name] = min(outside)
    return Allocation(cluster, ranges, beyond, placed)


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
                own = (*demand.neighbours.get(group.name, ()), larger)
                closer = replace(demand, neighbours={**demand.neighbours, group.name: own})
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
    least = max(least, -(-sum(group.devices for group in usual.counted) // each))
    counts = range(least, min(most, least + MAX_STEPS))
    return next((nodes for nodes in counts if _holds(groups, kind, nodes, each, on)), most)


def least_per_node(groups: Groups, kind: str, nodes: int, on: Mapping[str, NodeRanges] = {}) -> int:
    """Returns the least number of devices of a type per node for which all groups fit. If too many numbers
    were to be tried, it is a larger one."""
    total = end_of(Demand(groups, kind, ((1, UNLIMITED),), {}).allocated())
    per_worker = [group.gpus_per_worker for group in groups.values() if group.device_type == kind]
    least = max([-(-total // nodes), *per_worker])
    sizes = range(least, least + MAX_STEPS)
    each = next((each for each in sizes if _holds(groups, kind, nodes, each, on)), 2 * least)
    while not _holds(groups, kind, nodes, each, on):
        each *= 2
    return each


def _holds(groups: Groups, kind: str, nodes: int, each: int, on: Mapping[str, NodeRanges]) -> bool:
    demand = Demand(groups, kind, ((nodes, each),), on)
    return demand.is_met(demand.allocated())


@dataclass(frozen=True)
class Demand:
    """The groups of one device type, and the nodes with the devices that they may receive."""

    groups: Groups
    kind: str
    nodes: DevicesPerNode
    on: Mapping[str, NodeRanges]
    """Group -> the nodes on which the recipe places it. Groups without such nodes are absent."""
    neighbours: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Group -> the number of devices of each of its sets of neighbours, which are on one node."""

    @cached_property
    def own(self) -> list[DeviceGroup]:
        return [group for group in self.groups.values() if group.device_type == self.kind]

    @cached_property
    def counted(self) -> list[DeviceGroup]:
        """The groups that receive free devices, those that name nodes first."""
        found = [group for group in self.own if isinstance(group.ranks, int) and not group.colocate]
        return sorted(found, key=lambda group: group.name not in self.on)

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes, and further ones as large as the largest node, on which groups that do not fit receive
        numbers that the cluster does not have."""
        largest = max([1, *(each for _, each in self.nodes)])
        stated = sum(count for count, _ in self.nodes)
        return Cluster(stated + UNLIMITED, {"": (*self.nodes, (UNLIMITED, largest))})

    @cached_property
    def total(self) -> int:
        """The number of devices of the nodes."""
        return sum(count * each for count, each in self.nodes)

    def is_met(self, ranges: Ranges) -> bool:
        """Returns whether the nodes have all devices. A group on nodes that do not exist is not counted."""
        return end_of(ranges) <= self.total and all(
            device_count(ranges[group.name]) == group.devices
            for group in self.counted
            if self.on.get(group.name, True)
        )

    def allocated(self) -> Ranges:
        """Returns the devices of the groups. Groups with lists receive theirs first, then groups with nodes,
        then the others with counts in the order of the recipe, then colocated groups. If they do not fit, the
        groups with larger workers or sets of neighbours, and those that name fewer nodes, come first.

        A group receives fewer devices than it needs only if the nodes that it names have too few.
        """
        found = self._in_order(self.counted)
        if self.is_met(found):
            return found
        larger_first = self._in_order(sorted(self.counted, key=self._rank))
        return larger_first if self.is_met(larger_first) else found

    def _rank(self, group: DeviceGroup) -> tuple[int, int]:
        block = max(group.gpus_per_worker, *self.neighbours.get(group.name, (1,)))
        return -block, sum(stop - start for start, stop in self.on.get(group.name, ((0, UNLIMITED),)))

    def _in_order(self, groups: Iterable[DeviceGroup]) -> Ranges:
        """Returns the devices if the groups with counts receive the next free ones in this order."""
        lists = {group.name: group.ranks for group in self.own if isinstance(group.ranks, tuple)}
        ranges = {name: tuple(merged((number, number + 1) for number in one)) for name, one in lists.items()}
        for group in groups:
            # This group may use the devices in the list of a group that is colocated with it.
            others = [name for name in ranges if host_of(self.groups, name) != group.name]
            taken = sorted(some for name in others for some in ranges[name])
            free, each = gaps_between(taken), group.gpus_per_worker
            neighbours = self.neighbours.get(group.name, ())
            if neighbours:  # only the stated nodes: on the imagined ones there may be no set at all
                free = clipped(free, 0, self.total)
            if group.name in self.on:
                gaps = list(free)
                allowed = devices_on(self.cluster, "", self.on[group.name])
                free = (some for devices in allowed for some in clipped(gaps, *devices))
            largest = max(devices for _, devices in self.cluster.devices_per_node[""])
            if each > 1 and group.devices % each == 0 and each <= largest:
                free = whole_sets(free, each, self.cluster)
            for devices in neighbours:
                free = whole_sets(free, devices, self.cluster)
            ranges[group.name] = tuple(merged(first_of(free, group.devices)))
        for group in self.own:
            if isinstance(group.ranks, int) and group.colocate:
                hosted = ranges.get(host_of(self.groups, group.name), ())
                ranges[group.name] = first_of(hosted, group.ranks)
        return ranges


def host_of(groups: Groups, name: str) -> str:
    """Returns the name of the group at the end of the chain of `colocate` that begins with a group. If the
    chain is circular, it ends before its first repetition."""
    seen = [name]
    while (host := groups[seen[-1]].colocate) in groups and host not in seen:
        seen.append(host)
    return seen[-1]


def end_of(ranges: Mapping[str, DeviceRanges]) -> int:
    """Returns the largest device number in the ranges plus 1; 0 without devices."""
    return max((stop for own in ranges.values() for _, stop in own), default=0)
