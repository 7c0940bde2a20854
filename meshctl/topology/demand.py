"""The devices that the groups of one type receive on given nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Protocol

from meshctl.dataclass import dataclass
from meshctl.topology.bin_packing import MAX_GAPS, Item, distribute
from meshctl.topology.cluster import Cluster, DevicesPerNode, NodeRanges
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


Groups = Mapping[str, Group]
Ranges = dict[str, DeviceRanges]


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

    @cached_property
    def devices(self) -> int:
        """The number of devices that the groups with counts receive together."""
        return sum(group.devices for group in self.counted)

    def with_neighbours(self, group: str, devices: int) -> Demand:
        """Returns the demand with a further set of neighbours, which contains whole sets of those before."""
        neighbours = (*self.neighbours.get(group, ()), devices)
        return replace(self, neighbours={**self.neighbours, group: neighbours})

    def is_met(self, ranges: Ranges) -> bool:
        """Returns whether the nodes have all devices. A group on nodes that do not exist is not counted."""
        return end_of(ranges) <= self.total and all(
            device_count(ranges[group.name]) == group.devices
            for group in self.counted
            if self.on.get(group.name, True)
        )

    def allocated(self) -> Ranges:
        """Returns the devices of the groups. Groups with lists receive theirs first, then groups with nodes,
        then the others with counts in the order of the recipe, then colocated groups.

        A group receives fewer devices than it needs only if the nodes that it names have too few.
        """
        usual = sorted(self.counted, key=lambda group: group.name not in self.on)
        found = self._in_order(usual)
        if self.is_met(found) or not self._may_fit:
            return found
        larger_first = self._in_order(sorted(usual, key=lambda group: -self._block(group)))
        if self.is_met(larger_first):
            return larger_first
        searched = self._searched()
        return searched if searched and self.is_met(searched) else found

    def _in_order(self, groups: Iterable[Group]) -> Ranges:
        """Returns the devices if the groups with counts receive the next free ones in this order."""
        ranges = self._listed
        for group in groups:
            # This group may use the devices in the list of a group that is colocated with it.
            others = [name for name in ranges if host_of(self.groups, name) != group.name]
            taken = sorted(some for name in others for some in ranges[name])
            ranges[group.name] = self._next_free(group, taken)
        return self._with_colocated(ranges)

    @property
    def _listed(self) -> Ranges:
        """The devices of the groups with lists."""
        lists = {group.name: group.ranks for group in self.own if isinstance(group.ranks, tuple)}
        return {name: merged((number, number + 1) for number in one) for name, one in lists.items()}

    def _with_colocated(self, ranges: Ranges) -> Ranges:
        for group in self.own:
            if isinstance(group.ranks, int) and group.colocate:
                hosted = ranges.get(host_of(self.groups, group.name), ())
                ranges[group.name] = first_of(hosted, group.ranks)
        return ranges

    @property
    def _may_fit(self) -> bool:
        """True if another order may help: there are enough devices, and no block is larger than a node."""
        node = max([0, *(each for _, each in self.nodes)])
        return self.devices <= self.total and all(self._block(group) <= node for group in self.counted)

    def _block(self, group: Group) -> int:
        """Returns the number of devices of a group that must be on one node: those of its largest set of
        neighbours, or of a worker."""
        largest = max(devices for _, devices in self.cluster.devices_per_node[""])
        each, sets = group.gpus_per_worker, self.neighbours.get(group.name, ())
        is_whole = each > 1 and group.devices % each == 0 and each <= largest
        return max([each if is_whole else 1, *sets])

    def _searched(self) -> Ranges | None:
        """Returns the devices by a search over all distributions. None if there is none, or if it is not
        tried: for many gaps, and lists that are colocated with a count."""
        ranges = self._listed
        if any(host_of(self.groups, name) != name for name in ranges):
            return None
        gaps = self._free_gaps(ranges)
        if gaps is None:
            return None
        found = distribute([self._item(group, gaps) for group in self.counted], [size for *_, size in gaps])
        if found is None:
            return None
        own: dict[str, list[tuple[int, int]]] = {group.name: [] for group in self.counted}
        for number, (_, device, _) in enumerate(gaps):
            for group, places in zip(self.counted, found, strict=True):
                if count := places.get(number, 0) * self._block(group):
                    own[group.name].append((device, device + count))
                    device += count
        return self._with_colocated({**ranges, **{name: merged(some) for name, some in own.items()}})

    def _free_gaps(self, ranges: Ranges) -> list[tuple[int, int, int]] | None:
        """Returns (node, first device, devices) of what these ranges leave free on each node; None for too
        many nodes."""
        taken = sorted(some for own in ranges.values() for some in own)
        free = clipped(gaps_between(taken), 0, self.total)
        pieces = [piece for start, stop in free for piece in self.cluster.pieces("", start, stop)]
        if sum(piece.nodes for piece in pieces) > MAX_GAPS:
            return None
        return [
            (piece.first_node + node, piece.device + node * piece.each, piece.each)
            for piece in pieces
            for node in range(piece.nodes)
        ]

    def _item(self, group: Group, gaps: Sequence[tuple[int, int, int]]) -> Item:
        """Returns the request of a group for gaps of (node, first device, devices)."""
        block, on = self._block(group), self.on.get(group.name)
        nodes = [(0, UNLIMITED)] if on is None else on
        allowed = [
            number
            for number, (node, *_) in enumerate(gaps)
            if any(start <= node < stop for start, stop in nodes)
        ]
        return Item(-(-group.devices // block), block, allowed)

    def _next_free(self, group: Group, taken: list[tuple[int, int]]) -> DeviceRanges:
        """Returns the lowest free devices for a group. All devices of a worker are on one node, and all of a
        set of neighbours; devices of a node that are too few for one more are skipped."""
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
        return merged(first_of(free, group.devices))


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
