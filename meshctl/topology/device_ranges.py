"""Ranges [start, stop) of device numbers, in the order of the workers, and questions about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from meshctl.topology.cluster import Cluster, NodeRanges

DeviceRanges = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of device numbers, in the order of the workers."""
UNLIMITED = 1 << 40
"""A number above any number of nodes, or of devices per node."""


def merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the ranges, each joined with those that continue it or begin inside it."""
    held: tuple[int, int] | None = None
    for start, stop in ranges:
        if held and held[0] <= start <= held[1]:
            held = held[0], max(held[1], stop)
            continue
        if held:
            yield held
        held = start, stop
    if held:
        yield held


def gaps_between(taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the free ranges, lowest first; the last one has no end."""
    start = 0
    for begin, end in taken:
        if start < begin:
            yield start, begin
        start = max(start, end)
    yield start, UNLIMITED


def clipped(ranges: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of ascending ranges that are in [first, last)."""
    for start, stop in ranges:
        if start >= last:
            return
        if stop > first:
            yield max(start, first), min(stop, last)


def whole_sets(ranges: Iterable[tuple[int, int]], size: int, units: Cluster) -> Iterator[tuple[int, int]]:
    """Yields the devices that form sets of `size` neighbouring devices of one unit."""
    for devices in merged(ranges):
        for piece in units.pieces("", *devices):
            usable = piece.each // size * size
            if usable == piece.each:
                yield piece.device, piece.device + piece.nodes * piece.each
            elif usable:
                for start in range(piece.device, piece.device + piece.nodes * piece.each, piece.each):
                    yield start, start + usable


def first_of(ranges: Iterable[tuple[int, int]], count: int) -> DeviceRanges:
    """Returns the first `count` devices of the ranges, or all where there are fewer."""
    taken: list[tuple[int, int]] = []
    for start, stop in ranges:
        if count <= 0:
            break
        taken.append((start, min(stop, start + count)))
        count -= stop - start
    return tuple(taken)


def device_count(ranges: DeviceRanges) -> int:
    return sum(stop - start for start, stop in ranges)


def devices_on(cluster: Cluster, kind: str, nodes: NodeRanges) -> DeviceRanges:
    """Returns the devices of a type on these nodes."""
    return tuple((cluster.first_on(kind, start), cluster.first_on(kind, stop)) for start, stop in nodes)


def common(one: DeviceRanges, other: DeviceRanges) -> DeviceRanges:
    """Returns the devices that are in both. The ranges of `one` are in ascending order."""
    return tuple(some for start, stop in sorted(other) for some in clipped(one, start, stop))


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
    return min((start for start, _ in common(tuple(sorted(one)), other)), default=None)
