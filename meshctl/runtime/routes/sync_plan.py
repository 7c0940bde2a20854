"""Plans a sync: the parts of parameters that each rank sends to others, from the shards that all producers
hold and all consumers want.

    shard     a part of a parameter: where it begins and its size, per dim
    item      a shard that some consumers request, or a slab of it if it is larger than a bucket
    bucket    neighbouring items for the same consumers from the same producers, sent at once

Consumers on one node that request the same shard receive it together. If several producers hold a shard, the
nearest sends it; equally near ones take turns. Every rank computes the same buckets in the same order, and
processes those that it sends or receives in this order. A rank that waits in a sync therefore waits for an
earlier bucket, so that no two layouts can deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.topology.samples import RouteError

MAX_JOINED_BYTES = 16 << 20
"""Maximum size of a bucket with several items. A larger item has a separate bucket."""


@runtime_checkable
class DTensorLike(Protocol):
    """The methods that a sync uses of torch's DTensor. The import of its class would take half a second,
    which most workers save."""

    def __create_chunk_list__(self) -> Sequence[Any]: ...
    def to_local(self) -> Tensor: ...


@dataclass(frozen=True)
class Shard:
    """A part of a parameter: where it begins and its size, per dim."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.size)

    def intersection(self, other: Shard) -> Shard | None:
        """Returns the shard of the elements that are in both shards, or None if there are none."""
        start = tuple(map(max, self.start, other.start))
        ends = zip(self.start, self.size, other.start, other.size, strict=True)
        stop = [min(a + n, b + m) for a, n, b, m in ends]
        size = tuple(end - begin for begin, end in zip(start, stop, strict=True))
        return None if any(extent <= 0 for extent in size) else Shard(start, size)

    def view_of(self, tensor: Tensor, outer: Shard) -> Tensor:
        """Returns the view of this shard in a tensor that holds the shard `outer`."""
        dims = zip(self.start, outer.start, self.size, strict=True)
        slices = [slice(at - begin, at - begin + extent) for at, begin, extent in dims]
        return tensor[tuple(slices)] if slices else tensor

    def slabs(self, max_elements: int) -> Iterator[Shard]:
        """Yields the shard in neighbouring slabs of at most `max_elements`, in order; each is contiguous in a
        tensor of the shard."""
        if self.count <= max_elements:
            yield self
            return
        dim = next(dim for dim, extent in enumerate(self.size) if extent > 1)
        rows = max(1, max_elements // prod(self.size[dim + 1 :]))
        for at in range(0, self.size[dim], rows):
            start, size = [*self.start], [*self.size]
            start[dim], size[dim] = start[dim] + at, min(rows, size[dim] - at)
            yield from Shard(tuple(start), tuple(size)).slabs(max_elements)


Layout = Mapping[str, Shard]
"""Parameter -> the shard that one rank holds or wants."""


def layout_of(weights: Mapping[str, Tensor]) -> dict[str, Shard]:
    """Returns what this rank holds: the shard of a DTensor, or the whole of a plain tensor. Empty shards are
    left out."""
    held = {}
    for name, tensor in weights.items():
        if not isinstance(tensor, DTensorLike):
            held[name] = Shard((0,) * tensor.ndim, tuple(tensor.shape))
            continue
        for chunk in tensor.__create_chunk_list__():
            if prod(chunk.sizes):
                held[name] = Shard(tuple(chunk.offsets), tuple(chunk.sizes))
    return held


@dataclass(frozen=True)
class Parameter:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def whole(self) -> Shard:
        return Shard((0,) * len(self.shape), self.shape)


@dataclass(frozen=True)
class TransferItem:
    name: str
    """The name of the parameter."""
    shard: Shard


@dataclass(frozen=True)
class Bucket:
    """Items that are sent together. Each producer has one part of each item; all parts together are the
    item."""

    consumers: tuple[int, ...]
    """Ranks of the consuming component, all on one node."""
    producers: tuple[int, ...]
    """Ranks of the producing component, in the order of their parts."""
    items: tuple[TransferItem, ...]
    nbytes: int

    @property
    def leader(self) -> int:
        """The producer that lays out the frame of a bucket that several write. It is the same for all buckets
        of the same consumers."""
        return self.producers[self.consumers[0] % len(self.producers)]


Distance = Callable[[int, tuple[int, ...]], int]
"""(producer, consumers) -> 0 for the only consumer itself, 1 for the same node, 2 for another node."""


@dataclass(frozen=True)
class SyncPlan:
    """The shards that all producers hold and that all consumers request; the same on every rank of both
    sides."""

    parameters: Mapping[str, Parameter]
    """Name -> parameter, in the order in which they are sent."""
    held: Sequence[Layout]
    """Producer -> its shards."""
    requested: Sequence[Layout | None]
    """Consumer -> the shards that it asked for, or None for every parameter in full."""

    def wanted(self, consumer: int) -> dict[str, Shard]:
        """Returns what a consumer receives, in order. Raises `RouteError` for what no producer holds."""
        requested = self.requested[consumer]
        if requested is None:
            return {name: each.whole for name, each in self.parameters.items()}
        for name, shard in requested.items():
            if name not in self.parameters:
                raise RouteError(f"the producers hold no weights called `{name}`")
            shape = list(self.parameters[name].shape)
            if len(shard.start) != len(shape):
                raise RouteError(
                    f"`{name}` has {len(shard.start)} dims where it is loaded and the shape {shape} "
                    "where it comes from"
                )
        return {name: requested[name] for name in self.parameters if name in requested}

    def parts(self, bucket: Bucket, producer: int) -> list[Shard]:
        """Returns a producer's part of each item of a bucket."""
        held = self.held[producer]
        parts = [item.shard.intersection(held[item.name]) for item in bucket.items]
        return [part for part in parts if part is not None]

    def buckets(
        self, node_of: Callable[[int], int], distance: Distance, max_bytes: int, max_joined_bytes: int
    ) -> list[Bucket]:
        """Returns all buckets of a sync, in order. `node_of` returns the node of a consumer. Raises
        `RouteError` where the shards do not cover what is wanted exactly once."""
        open_buckets: dict[tuple[int, ...], _OpenBucket] = {}
        begun: list[_OpenBucket] = []
        wanted = [self.wanted(consumer) for consumer in range(len(self.requested))]
        for name, parameter in self.parameters.items():
            held = self._holders(name)
            width = parameter.dtype.itemsize
            for shard, consumer_sets in _consumers_by_shard(name, wanted, node_of).items():
                _check_covered(name, shard, held)
                for slab in shard.slabs(max(1, max_bytes // width)):
                    holders = tuple(ranks for part, ranks in held.items() if part.intersection(slab))
                    for consumers in consumer_sets:
                        bucket = open_buckets.get(consumers)
                        if bucket is None or not bucket.has_room(
                            holders, slab.count * width, max_joined_bytes
                        ):
                            bucket = open_buckets[consumers] = _OpenBucket(consumers, holders)
                            begun.append(bucket)
                        bucket.add(TransferItem(name, slab), slab.count * width)
        return [bucket.closed(number, distance) for number, bucket in enumerate(begun)]

    def _holders(self, name: str) -> dict[Shard, tuple[int, ...]]:
        """Returns the producers that hold each shard of a parameter, in the order of the shards."""
        found: dict[Shard, list[int]] = {}
        for producer, layout in enumerate(self.held):
            if name in layout:
                found.setdefault(layout[name], []).append(producer)
        return {shard: tuple(found[shard]) for shard in sorted(found, key=lambda shard: shard.start)}


def _check_covered(name: str, wanted: Shard, held: Mapping[Shard, object]) -> None:
    """Raises `RouteError` unless the shards that producers hold contain each element of `wanted` once."""
    found = sum(part.count for shard in held if (part := shard.intersection(wanted)))
    if found != wanted.count:
        how = "more than one part of some elements" if found > wanted.count else "only a part"
        raise RouteError(f"the producers hold {how} of `{name}`")


def _consumers_by_shard(
    name: str, wanted: Sequence[Layout], node_of: Callable[[int], int]
) -> dict[Shard, list[tuple[int, ...]]]:
    """Returns the consumers of each shard of a parameter, one tuple per node. Shards without elements are not
    sent."""
    found: dict[Shard, dict[int, list[int]]] = {}
    for consumer, layout in enumerate(wanted):
        if name in layout and layout[name].count:
            found.setdefault(layout[name], {}).setdefault(node_of(consumer), []).append(consumer)
    return {shard: [tuple(consumers) for consumers in nodes.values()] for shard, nodes in found.items()}


@dataclass
class _OpenBucket:
    consumers: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    """The producers that hold each part, which are the same for all items of the bucket."""
    items: list[TransferItem] = field(default_factory=list)
    nbytes: int = 0

    def has_room(self, holders: tuple[tuple[int, ...], ...], nbytes: int, max_bytes: int) -> bool:
        return self.holders == holders and self.nbytes + nbytes <= max_bytes

    def add(self, item: TransferItem, nbytes: int) -> None:
        self.items.append(item)
        self.nbytes += nbytes

    def closed(self, number: int, distance: Distance) -> Bucket:
        """Returns the full bucket. Each part is sent by the nearest of its holders; equally near ones take
        turns by the bucket's `number`."""
        producers = []
        for ranks in self.holders:
            least = min(distance(rank, self.consumers) for rank in ranks)
            nearest = [rank for rank in ranks if distance(rank, self.consumers) == least]
            producers.append(nearest[number % len(nearest)])
        return Bucket(self.consumers, tuple(producers), tuple(self.items), self.nbytes)
