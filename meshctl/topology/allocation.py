"""Computes the devices of each group, and the smallest cluster that has enough devices.

    list       a group with a list of devices receives exactly these devices
    nodes      a group with a count and nodes receives the next free devices of these nodes
    count      a group with a count receives the next free devices, in the order of groups in the recipe
    colocate   a colocated group receives the first devices of the other group

Some neighbouring ranks of a group with a count should be close to each other, because they exchange data
within every layer. Devices are skipped so that each set of such neighbours is on one node, or else in one
domain, where the cluster has enough devices for that. A cluster is never made larger for it.

Devices are numbered over the cluster, separately for each type. They are stored as ranges [start, stop) in
the order of the workers, and nodes as runs of equal nodes, so that no cost grows with the number of devices.
The only exception is a group whose workers leave some devices of every node unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import Protocol

from meshctl.dataclass import dataclass
from meshctl.topology.cluster import ACCELERATORS, Cluster, DevicesPerNode, NodeRanges, NodesPerDomain
from meshctl.topology.domains import by_domain, domains_of

DeviceRanges = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of device numbers, in the order of the workers."""
UNLIMITED = 1 << 40
"""A number above any number of nodes, or of devices per node."""
MAX_LINEAR_STEPS = 64
"""The number of node sizes that the search for the smallest node tries one by one before it uses larger
steps."""


class Group(Protocol):
    """The request of one device group."""

    @property
    def name(self) -> str: ...
    @property
    def device_type(self) -> str: ...
    @property
    def ranks(self) -> int | tuple[int, ...]:
        """A count of devices, or the numbers of the devices."""

    @property
    def devices(self) -> int:
        """The number of devices."""

    @property
    def gpus_per_worker(self) -> int: ...
    @property
    def colocate(self) -> str:
        """The group whose devices it shares; empty for none."""

    @property
    def nodes(self) -> tuple[int | str, ...]:
        """The numbers of nodes, and the names of node pools, on which it is placed; empty for all nodes."""


class Hardware(Protocol):
    """The statements of a recipe about the cluster."""

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 if it is unknown."""

    @property
    def named(self) -> tuple[str, ...]:
        """The device types that the cluster has, whether or not a group uses them."""

    @property
    def domains(self) -> Mapping[str, int | NodesPerDomain]:
        """By kind of domain: the number of nodes in each domain, or the runs of equal domains."""

    @property
    def pools(self) -> tuple[tuple[str, int], ...]:
        """(name, number of nodes) of each node pool."""

    def devices_of(self, device_type: str) -> int | DevicesPerNode:
        """Returns the devices per node: one number for all nodes, or runs of equal nodes; 0 if unknown. If
        the recipe does not distinguish types, the result is the same for every name, including ""."""

    def ranges_of(self, nodes: tuple[int | str, ...]) -> NodeRanges:
        """Returns the nodes that a group names. Unknown names are left out."""


Groups = Mapping[str, Group]
Ranges = dict[str, DeviceRanges]
Neighbours = tuple[int, ...]
"""Numbers of ranks that should be on one node, or else in one domain: the most important one first."""


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
    on = {name: tuple(_clipped(named, 0, nodes)) for name, named in on.items()}
    domains = {
        kind: domains_of(nodes, each) if isinstance(each, int) else each
        for kind, each in hardware.domains.items()
    }
    cluster = Cluster(nodes, {}, hardware.pools, domains)
    ranges: dict[str, DeviceRanges] = dict.fromkeys(groups, ())
    for kind in types:
        given = hardware.devices_of(kind) or least_per_node(groups, kind, nodes, on)
        per_node = ((nodes, given),) if isinstance(given, int) else given
        cluster = replace(cluster, devices_per_node={**cluster.devices_per_node, kind: per_node})
        ranges |= _close(Demand(groups, kind, per_node, on), neighbours, domains)
    placed = {name: nodes for name, nodes in on.items() if groups[name].device_type == "cpu"}
    return Allocation(cluster, ranges, dict(_beyond(groups, cluster, ranges)), placed)


def _close(
    demand: Demand, neighbours: Mapping[str, Neighbours], domains: Mapping[str, NodesPerDomain]
) -> Ranges:
    """Returns the devices of the groups of one type. Neighbours are kept inside a node, or else inside a
    domain, in the order of preference of each group, as long as the stated nodes are enough."""
    found = demand.allocated()
    if not demand.is_met(found):
        return found
    for group in demand.counted:
        size = group.gpus_per_worker
        for ranks in neighbours.get(group.name, ()):
            larger = lcm(size, ranks * group.gpus_per_worker)
            for unit in ("", *domains) if group.devices % larger == 0 else ():
                closer = demand.with_neighbours(group.name, larger, demand.units(unit, domains))
                if closer.is_met(there := closer.allocated()):
                    demand, found, size = closer, there, larger
                    break
    return found


def _node_count(
    groups: Groups, hardware: Hardware, types: Iterable[str], on: Mapping[str, NodeRanges]
) -> int:
    """Returns the inferred number of nodes: the largest number that some value states or, without such
    values, the smallest number of nodes that is enough for the groups."""
    given = {kind: hardware.devices_of(kind) for kind in (*types, *hardware.named, "")}
    stated = [sum(count for count, _ in runs) for runs in given.values() if isinstance(runs, tuple)]
    stated += [
        sum(count * each for count, each in runs)
        for runs in hardware.domains.values()
        if isinstance(runs, tuple)
    ]
    if stated:
        return max(stated)
    counts = [1, *(stop for nodes in on.values() for _, stop in nodes)]
    for kind in types:
        each = given[kind]
        if isinstance(each, int) and each:
            end = _end(Demand(groups, kind, ((UNLIMITED, each),), on).allocated())
            counts.append(-(-end // each))
    return max(counts)


def least_per_node(groups: Groups, kind: str, nodes: int, on: Mapping[str, NodeRanges] = {}) -> int:
    """Returns the least number of devices of a type per node for which all groups fit."""

    def holds(each: int) -> bool:
        demand = Demand(groups, kind, ((nodes, each),), on)
        return demand.is_met(demand.allocated())

    total = _end(Demand(groups, kind, ((1, UNLIMITED),), {}).allocated())
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


def _end(ranges: Mapping[str, DeviceRanges]) -> int:
    """Returns the largest device number in the ranges plus 1; 0 without devices."""
    return max((stop for own in ranges.values() for _, stop in own), default=0)


def _beyond(
    groups: Groups, cluster: Cluster, ranges: Mapping[str, DeviceRanges]
) -> Iterator[tuple[str, int]]:
    for name, own in ranges.items():
        total = cluster.total(groups[name].device_type)
        if outside := [max(start, total) for start, stop in own if stop > total]:
            yield name, min(outside)


@dataclass(frozen=True)
class Demand:
    """The groups of one device type, and the nodes with the devices that they may receive."""

    groups: Groups
    kind: str
    nodes: DevicesPerNode
    on: Mapping[str, NodeRanges]
    """Group -> the nodes that it names. Groups that name none are absent."""
    neighbours: Mapping[str, tuple[tuple[int, Cluster], ...]] = field(default_factory=dict)
    """Group -> (devices, units) for each of its sets of neighbours: so many devices are in one unit, which is
    a node or a domain."""

    @cached_property
    def own(self) -> list[Group]:
        return [group for group in self.groups.values() if group.device_type == self.kind]

    @cached_property
    def counted(self) -> list[Group]:
        """The groups that receive free devices."""
        return [group for group in self.own if isinstance(group.ranks, int) and not group.colocate]

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes and, because they may have too few devices, further imagined ones, each as large as the
        largest node."""
        largest = max([1, *(each for _, each in self.nodes)])
        stated = sum(count for count, _ in self.nodes)
        return Cluster(stated + UNLIMITED, {"": (*self.nodes, (UNLIMITED, largest))})

    @cached_property
    def total(self) -> int:
        """The number of devices of the nodes."""
        return sum(count * each for count, each in self.nodes)

    def units(self, kind: str, domains: Mapping[str, NodesPerDomain]) -> Cluster:
        """Returns the nodes, or the domains of a kind, as a cluster."""
        return by_domain(replace(self.cluster, domains=domains), kind) if kind else self.cluster

    def with_neighbours(self, group: str, devices: int, units: Cluster) -> Demand:
        """Returns the demand with a further set of neighbours, which contains whole sets of those before."""
        neighbours = (*self.neighbours.get(group, ()), (devices, units))
        return replace(self, neighbours={**self.neighbours, group: neighbours})

    def is_met(self, ranges: Ranges) -> bool:
        """Whether the nodes have all devices. A group on nodes that do not exist is not counted."""
        return _end(ranges) <= self.total and all(
            device_count(ranges[group.name]) == group.devices
            for group in self.counted
            if self.on.get(group.name, True)
        )

    def allocated(self) -> Ranges:
        """Returns the devices of the groups. Groups with lists receive theirs first, then groups with nodes,
        then the others with counts in the order of the recipe, then colocated groups.

        A group receives fewer devices than it needs only if the nodes that it names have too few.
        """
        ranges: Ranges = {}
        for group in self.own:
            if isinstance(group.ranks, tuple):
                ranges[group.name] = _merged((number, number + 1) for number in group.ranks)
        for group in sorted(self.counted, key=lambda group: group.name not in self.on):
            # This group may use the devices in the list of a group that is colocated with it.
            others = [name for name in ranges if host_of(self.groups, name) != group.name]
            taken = sorted(some for name in others for some in ranges[name])
            ranges[group.name] = self._next_free(group, taken)
        for group in self.own:
            if isinstance(group.ranks, int) and group.colocate:
                hosted = ranges.get(host_of(self.groups, group.name), ())
                ranges[group.name] = _first(hosted, group.ranks)
        return ranges

    def _next_free(self, group: Group, taken: list[tuple[int, int]]) -> DeviceRanges:
        """Returns the lowest free devices for a group. All devices of a worker are on one node, and all of a
        set of neighbours in one unit; devices of a node or unit that are too few for one more are skipped."""
        free, each, neighbours = _gaps(taken), group.gpus_per_worker, self.neighbours.get(group.name, ())
        if neighbours:  # only the stated nodes: on the imagined ones there may be no set at all
            free = _clipped(free, 0, self.total)
        if group.name in self.on:
            gaps = list(free)
            allowed = devices_on(self.cluster, "", self.on[group.name])
            free = (some for devices in allowed for some in _clipped(gaps, *devices))
        largest = max(devices for _, devices in self.cluster.devices_per_node[""])
        if each > 1 and group.devices % each == 0 and each <= largest:
            free = _whole(free, each, self.cluster)
        for devices, units in neighbours:
            free = _whole(free, devices, units)
        return _merged(_first(free, group.devices))


def host_of(groups: Groups, name: str) -> str:
    """Returns the name of the group at the end of the chain of `colocate` that begins with a group. If the
    chain is circular, it ends before its first repetition."""
    seen = [name]
    while (host := groups[seen[-1]].colocate) in groups and host not in seen:
        seen.append(host)
    return seen[-1]


def _merged(ranges: Iterable[tuple[int, int]]) -> DeviceRanges:
    """Joins each range with the one that it continues."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def _gaps(taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the free ranges, lowest first; the last one has no end."""
    start = 0
    for begin, end in taken:
        if start < begin:
            yield start, begin
        start = max(start, end)
    yield start, UNLIMITED


def _clipped(ranges: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of ascending ranges that are in [first, last)."""
    for start, stop in ranges:
        if start >= last:
            return
        if stop > first:
            yield max(start, first), min(stop, last)


def _whole(ranges: Iterable[tuple[int, int]], size: int, units: Cluster) -> Iterator[tuple[int, int]]:
    """Yields the devices that form sets of `size` neighbouring devices of one unit."""
    held: tuple[int, int] | None = None
    for start, stop in ranges:
        if held and held[1] == start:
            held = held[0], stop
            continue
        if held:
            yield from _whole_sets(held, size, units)
        held = start, stop
    if held:
        yield from _whole_sets(held, size, units)


def _whole_sets(devices: tuple[int, int], size: int, units: Cluster) -> Iterator[tuple[int, int]]:
    for piece in units.pieces("", *devices):
        usable = piece.each // size * size
        if usable == piece.each:
            yield piece.device, piece.device + piece.nodes * piece.each
        elif usable:
            for start in range(piece.device, piece.device + piece.nodes * piece.each, piece.each):
                yield start, start + usable


def _first(ranges: Iterable[tuple[int, int]], count: int) -> DeviceRanges:
    """Returns the first `count` devices of the ranges, or all where there are fewer."""
    taken: list[tuple[int, int]] = []
    for start, stop in ranges:
        if count <= 0:
            break
        taken.append((start, min(stop, start + count)))
        count -= stop - start
    return tuple(taken)


# Questions about ranges of devices


def device_count(ranges: DeviceRanges) -> int:
    return sum(stop - start for start, stop in ranges)


def devices_on(cluster: Cluster, kind: str, nodes: NodeRanges) -> DeviceRanges:
    """Returns the devices of a type on these nodes."""
    return tuple((cluster.first_on(kind, start), cluster.first_on(kind, stop)) for start, stop in nodes)


def common(one: DeviceRanges, other: DeviceRanges) -> DeviceRanges:
    """Returns the devices that are in both. The ranges of `one` are in ascending order."""
    return tuple(some for start, stop in sorted(other) for some in _clipped(one, start, stop))


def first_split_worker(ranges: DeviceRanges, each: int, cluster: Cluster, kind: str) -> int | None:
    """Returns the first worker whose `each` devices are not consecutive devices of one node; None if there is
    none."""
    worker = 0
    for start, stop in ranges:
        for piece in cluster.pieces(kind, start, stop):
            whole, rest = divmod(piece.each, each)
            if rest:
                return worker + whole
            worker += piece.nodes * whole
    return None


def most_per_node(ranges: DeviceRanges, cluster: Cluster, kind: str) -> int:
    """Returns the largest number of these devices that one node has."""
    changes: dict[int, int] = {}
    for piece in (piece for start, stop in ranges for piece in cluster.pieces(kind, start, stop)):
        end = piece.first_node + piece.nodes
        changes[piece.first_node] = changes.get(piece.first_node, 0) + piece.each
        changes[end] = changes.get(end, 0) - piece.each
    return max(accumulate(changes[node] for node in sorted(changes)), default=0)


def first_common_device(one: DeviceRanges, other: DeviceRanges) -> int | None:
    """Returns the lowest device that is in both; None if there is none."""
    owned = sorted([(start, stop, 0) for start, stop in one] + [(start, stop, 1) for start, stop in other])
    end, owner = 0, -1
    for start, stop, group in owned:
        if start < end and group != owner:
            return start
        if stop > end:
            end, owner = stop, group
    return None
