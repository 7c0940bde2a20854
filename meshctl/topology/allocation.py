"""Computes the devices of each group, and the smallest cluster that has enough devices.

    list       a group with a list of devices receives exactly these devices
    count      a group with a count receives the next free devices, in the order of groups in the recipe
    colocate   a colocated group receives the first devices of the other group

Devices are numbered over the cluster, separately for each type. They are stored as ranges [start, stop) in
the order of the workers, and nodes as runs of equal nodes, so that no cost grows with the number of devices.
The only exception is a group whose workers leave some devices of every node unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import accumulate
from typing import Protocol

from meshctl.dataclass import dataclass
from meshctl.topology.cluster import ACCELERATORS, Cluster, DevicesPerNode, Piece, devices_by_node

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


class Hardware(Protocol):
    """The statements of a recipe about the cluster."""

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 if it is unknown."""

    @property
    def named(self) -> tuple[str, ...]:
        """The device types that the cluster has, whether or not a group uses them."""

    def devices_of(self, device_type: str) -> int | tuple[int, ...]:
        """Returns the devices per node: one number for all nodes, or a number per node; 0 if unknown. If the
        recipe does not distinguish types, the result is the same for every name, including ""."""


Groups = Mapping[str, Group]


@dataclass(frozen=True)
class Allocation:
    cluster: Cluster
    devices: Mapping[str, DeviceRanges]
    """The devices of each group; empty on cpu."""
    beyond: Mapping[str, int] = field(default_factory=dict)
    """Group -> its lowest device number that the cluster does not have. Groups without such a device are
    absent."""


def allocate(groups: Groups, hardware: Hardware) -> Allocation:
    """Returns the devices of every group. If `hardware` does not state the number of nodes, or of devices per
    node, the smallest number that is enough for the groups is used."""
    used = {group.device_type for group in groups.values()}
    types = [kind for kind in ACCELERATORS if kind in used or kind in hardware.named]
    nodes = hardware.nodes or _node_count(groups, hardware, types)
    ranges: dict[str, DeviceRanges] = dict.fromkeys(groups, ())
    per_node: dict[str, DevicesPerNode] = {}
    for kind in types:
        given = hardware.devices_of(kind)
        per_node[kind] = devices_by_node(nodes, given or least_per_node(groups, kind, nodes))
        ranges |= _devices_of_type(groups, kind, per_node[kind])
    cluster = Cluster(nodes, per_node)
    return Allocation(cluster, ranges, dict(_beyond(groups, cluster, ranges)))


def _node_count(groups: Groups, hardware: Hardware, types: Iterable[str]) -> int:
    """Returns the inferred number of nodes: the length of the longest list of devices per node or, without
    such lists, the smallest number of nodes that is enough for the groups."""
    given = {kind: hardware.devices_of(kind) for kind in types}
    given |= {kind: hardware.devices_of(kind) for kind in hardware.named}
    if lengths := [
        len(each) for each in (*given.values(), hardware.devices_of("")) if isinstance(each, tuple)
    ]:
        return max(lengths)
    counts = [1]
    for kind in types:
        each = given[kind]
        if isinstance(each, int) and each:
            end = _end(_devices_of_type(groups, kind, ((UNLIMITED, each),)))
            counts.append(-(-end // each))
    return max(counts)


def least_per_node(groups: Groups, kind: str, nodes: int) -> int:
    """Returns the least number of devices of a type per node for which all groups fit."""

    def holds(each: int) -> bool:
        return _end(_devices_of_type(groups, kind, ((nodes, each), (UNLIMITED, each)))) <= nodes * each

    total = _end(_devices_of_type(groups, kind, ((1, UNLIMITED),)))
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


def _devices_of_type(groups: Groups, kind: str, nodes: DevicesPerNode) -> dict[str, DeviceRanges]:
    """Returns the devices of the groups of one type. Groups with lists receive theirs first, then groups with
    counts in the order of the recipe, then colocated groups.

    Where the nodes have too few devices, the numbering continues on imagined nodes, each as large as the
    largest node.
    """
    ranges: dict[str, DeviceRanges] = {}
    largest = max([1, *(each for _, each in nodes)])
    cluster = Cluster(0, {"": (*nodes, (UNLIMITED, largest))})
    own = [group for group in groups.values() if group.device_type == kind]
    for group in own:
        if isinstance(group.ranks, tuple):
            ranges[group.name] = _merged((number, number + 1) for number in group.ranks)
    for group in own:
        if isinstance(group.ranks, int) and not group.colocate:
            # This group may use the devices in the list of a group that is colocated with it.
            others = [name for name in ranges if host_of(groups, name) != group.name]
            taken = sorted(some for name in others for some in ranges[name])
            ranges[group.name] = _next_free(group, taken, cluster)
    for group in own:
        if isinstance(group.ranks, int) and group.colocate:
            ranges[group.name] = _first(ranges.get(host_of(groups, group.name), ()), group.ranks)
    return ranges


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


def _next_free(group: Group, taken: list[tuple[int, int]], cluster: Cluster) -> DeviceRanges:
    """Returns the lowest free devices for a group. All devices of a worker are on one node; devices of a node
    that are too few for one more worker are skipped."""
    each = group.gpus_per_worker
    largest = max(devices for _, devices in cluster.devices_per_node[""])
    if each == 1 or group.devices % each or each > largest:
        return _first(_gaps(taken), group.devices)
    whole_workers = (
        some
        for start, stop in _gaps(taken)
        for piece in cluster.pieces("", start, stop)
        for some in _whole_workers(piece, each)
    )
    return _merged(_first(whole_workers, group.devices))


def _gaps(taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the free ranges, lowest first; the last one has no end."""
    start = 0
    for begin, end in taken:
        if start < begin:
            yield start, begin
        start = max(start, end)
    yield start, UNLIMITED


def _whole_workers(piece: Piece, each: int) -> Iterator[tuple[int, int]]:
    """Yields the devices of a piece that form workers of `each` devices of one node."""
    usable = piece.each // each * each
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
