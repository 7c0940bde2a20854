"""Which rank gives which part of which parameter to whom: the links of a sync, from what all givers hold and
all takers want.

    box       a part of a parameter: where it begins and how large it is, per dim
    item      a box that some takers want, or a slab of it where it is larger than what travels at once
    bucket    neighbouring items for the same takers, from the same givers: what travels at once

Takers of one node that want the same box get it together. Of several givers that hold the same box the
nearest gives it, and equals take turns. Every rank computes the same buckets in the same order, and goes
through those that it gives or takes in that order: whoever waits in a sync waits for what comes earlier in
it, so no two layouts can make it stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from meshctl.topology.samples import RouteError

BUCKET = 128 << 20
"""Bytes of a bucket at most: a box that is larger is cut, and who takes it puts it together."""
FULL = 16 << 20
"""Bytes of a bucket of several items at most; a larger one has a bucket of its own."""


@runtime_checkable
class Sharded(Protocol):
    """torch's DTensor by what is used of it: importing the class costs half a second that most workers need
    not spend."""

    def __create_chunk_list__(self) -> Sequence[Any]: ...
    def to_local(self) -> Tensor: ...


@dataclass(frozen=True)
class Box:
    """A part of a parameter: where it begins and how large it is, per dim."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """Elements."""
        return prod(self.size)

    def meet(self, other: Box) -> Box | None:
        """What two boxes share, or none."""
        start = tuple(map(max, self.start, other.start))
        stop = [
            min(a + n, b + m)
            for a, n, b, m in zip(self.start, self.size, other.start, other.size, strict=True)
        ]
        size = tuple(end - begin for begin, end in zip(start, stop, strict=True))
        return None if any(extent <= 0 for extent in size) else Box(start, size)

    def of(self, tensor: Tensor, outer: Box) -> Tensor:
        """The view of this box in a tensor that holds `outer`."""
        slices = [
            slice(at - begin, at - begin + extent)
            for at, begin, extent in zip(self.start, outer.start, self.size, strict=True)
        ]
        return tensor[tuple(slices)] if slices else tensor

    def slabs(self, most: int) -> Iterator[Box]:
        """The box cut into neighbouring ones of at most so many elements, in order; each lies in one piece in
        a tensor of the box."""
        if self.count <= most:
            yield self
            return
        dim = next(dim for dim, extent in enumerate(self.size) if extent > 1)
        rows = max(1, most // prod(self.size[dim + 1 :]))
        for at in range(0, self.size[dim], rows):
            start, size = [*self.start], [*self.size]
            start[dim], size[dim] = start[dim] + at, min(rows, size[dim] - at)
            yield from Box(tuple(start), tuple(size)).slabs(most)


Layout = Mapping[str, Box]
"""What one rank holds of each parameter."""


def boxes(weights: Mapping[str, Tensor]) -> dict[str, Box]:
    """What this rank holds: the shard of a DTensor, or the whole of a plain tensor; an empty shard is left
    out."""
    held = {}
    for name, tensor in weights.items():
        if isinstance(tensor, Sharded):
            for chunk in tensor.__create_chunk_list__():
                if prod(chunk.sizes):
                    held[name] = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        else:
            held[name] = Box((0,) * tensor.ndim, tuple(tensor.shape))
    return held


@dataclass(frozen=True)
class Parameter:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def whole(self) -> Box:
        return Box((0,) * len(self.shape), self.shape)


@dataclass(frozen=True)
class Item:
    name: str
    box: Box


@dataclass(frozen=True)
class Bucket:
    """What travels at once. Of each item every giver has one part, and all parts together are the item."""

    takers: tuple[int, ...]
    givers: tuple[int, ...]
    """In the order of their parts."""
    items: tuple[Item, ...]
    nbytes: int

    @property
    def teller(self) -> int:
        """The giver that lays it out, where they write it together; bucket after bucket it is the same for
        the same takers."""
        return self.givers[self.takers[0] % len(self.givers)]


Near = Callable[[int, tuple[int, ...]], int]
"""How far a giver is from some takers: 0 for the only taker itself, 1 for the same node, 2 for another."""


@dataclass(frozen=True)
class Layouts:
    """What all givers hold and all takers want; the same on every rank of both sides. Raises `RouteError`
    where it does not fit."""

    parameters: Mapping[str, Parameter]
    """In the order in which they travel."""
    givers: Sequence[Layout]
    takers: Sequence[Layout | None]
    """None for a taker that wants every parameter in full."""

    def wanted(self, taker: int) -> dict[str, Box]:
        """What a taker wants, in the order in which it gets it."""
        said = self.takers[taker]
        if said is None:
            return {name: each.whole for name, each in self.parameters.items()}
        for name, box in said.items():
            if name not in self.parameters:
                raise RouteError(f"the givers hold no weights called `{name}`")
            if len(box.start) != len(self.parameters[name].shape):
                shape = list(self.parameters[name].shape)
                raise RouteError(
                    f"`{name}` has {len(box.start)} dims where it is loaded and the shape {shape} where it comes from"
                )
        return {name: said[name] for name in self.parameters if name in said}

    def buckets(self, node_of: Callable[[int], int], far: Near, most: int, full: int) -> list[Bucket]:
        """All buckets of a sync, in order: of at most `full` bytes, or of one item of at most `most`.
        `node_of` says where a taker is."""
        begun: list[_Begun] = []
        filling: dict[tuple[int, ...], _Begun] = {}
        wanted = [self.wanted(taker) for taker in range(len(self.takers))]
        for name, parameter in self.parameters.items():
            held = self._held(name)
            for box, takers in _together(name, wanted, node_of).items():
                self._check(name, box, held)
                for slab in box.slabs(max(1, most // parameter.dtype.itemsize)):
                    holders = tuple(ranks for part, ranks in held.items() if part.meet(slab))
                    for some in takers:
                        bucket = filling.get(some)
                        if bucket is None or not bucket.takes(
                            holders, slab.count * parameter.dtype.itemsize, full
                        ):
                            bucket = filling[some] = _Begun(some, holders)
                            begun.append(bucket)
                        bucket.add(Item(name, slab), slab.count * parameter.dtype.itemsize)
        return [bucket.done(number, far) for number, bucket in enumerate(begun)]

    def _held(self, name: str) -> dict[Box, tuple[int, ...]]:
        """Who holds which part of a parameter, in the order of the parts."""
        found: dict[Box, list[int]] = {}
        for giver, layout in enumerate(self.givers):
            if name in layout:
                found.setdefault(layout[name], []).append(giver)
        return {box: tuple(found[box]) for box in sorted(found, key=lambda box: box.start)}

    @staticmethod
    def _check(name: str, wanted: Box, held: Mapping[Box, object]) -> None:
        found = sum(part.count for box in held if (part := box.meet(wanted)))
        if found != wanted.count:
            how = "more than one part of some elements" if found > wanted.count else "only a part"
            raise RouteError(f"the givers hold {how} of `{name}`")


def _together(
    name: str, wanted: Sequence[Layout], node_of: Callable[[int], int]
) -> dict[Box, list[tuple[int, ...]]]:
    """The takers of each box of a parameter, those of one node together; a box without elements does not
    travel."""
    found: dict[Box, dict[int, list[int]]] = {}
    for taker, layout in enumerate(wanted):
        if name in layout and layout[name].count:
            found.setdefault(layout[name], {}).setdefault(node_of(taker), []).append(taker)
    return {box: [tuple(takers) for takers in nodes.values()] for box, nodes in found.items()}


@dataclass
class _Begun:
    """A bucket that is being filled."""

    takers: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    """Of each part of every item in it, the givers that could give it."""
    items: list[Item] = field(default_factory=list)
    nbytes: int = 0

    def takes(self, holders: tuple[tuple[int, ...], ...], nbytes: int, full: int) -> bool:
        return self.holders == holders and self.nbytes + nbytes <= full

    def add(self, item: Item, nbytes: int) -> None:
        self.items.append(item)
        self.nbytes += nbytes

    def done(self, number: int, far: Near) -> Bucket:
        givers = []
        for ranks in self.holders:
            distance = min(far(rank, self.takers) for rank in ranks)
            nearest = [rank for rank in ranks if far(rank, self.takers) == distance]
            givers.append(nearest[number % len(nearest)])
        return Bucket(self.takers, tuple(givers), tuple(self.items), self.nbytes)
