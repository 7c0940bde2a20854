"""Where ranks lie: every dim a few digits, every rank a sum of strides.

    dim      digits, outermost first: ((size, stride), ...); usually one. Index 5 of ((2, 8), (4, 1)) is
             digits 1 and 1, so 9 ranks on
    join     puts the digits of several dims one after the other: a flattened dim
    split    parts a dim into an outer and an inner one: how views re-factor the same ranks

A `Layout` adds where the first rank is, and for ranks that are no sum of strides a table of them. Nothing
lists ranks unless the answer is a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

Dim = tuple[tuple[int, int], ...]


def row_major(shape: Sequence[int]) -> tuple[Dim, ...]:
    """The dims of ranks that are numbered with the last dim fastest."""
    return tuple(((size, prod(shape[index + 1 :])),) for index, size in enumerate(shape))


def size_of(dim: Dim) -> int:
    return prod(size for size, _ in dim)


def join(dims: Iterable[Dim]) -> Dim:
    """One dim that runs through all of them, the last fastest, in as few digits as can be."""
    joined: list[tuple[int, int]] = []
    for size, stride in (digit for dim in dims for digit in dim if digit[0] > 1):
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return tuple(joined)


def split(dim: Dim, inner: int) -> tuple[Dim, Dim] | None:
    """The dim as an outer and an inner one of size `inner`; none where that would part a digit unevenly."""
    outer, taken = list(dim), list[tuple[int, int]]()
    while inner > 1:
        size, stride = outer.pop() if outer else (1, 0)
        if inner % size == 0 and size > 1:
            taken.insert(0, (size, stride))
            inner //= size
        elif size % inner == 0:
            taken.insert(0, (inner, stride))
            outer.append((size // inner, stride * inner))
            inner = 1
        else:
            return None
    return tuple(outer), tuple(taken)


def offset(dim: Dim, index: int) -> int:
    """How far the `index`-th of a dim is from its first, in ranks."""
    found = 0
    for size, stride in reversed(dim):
        index, digit = divmod(index, size)
        found += digit * stride
    return found


def offsets(dims: Iterable[Dim]) -> list[int]:
    """How far each combination of indices is from the first, the last dim fastest."""
    found = [0]
    for size, stride in (digit for dim in dims for digit in dim):
        found = [base + index * stride for base in found for index in range(size)]
    return found


@dataclass(frozen=True)
class Layout:
    """Which rank is where."""

    dims: tuple[Dim, ...]
    start: int = 0
    """The rank whose indices are all 0."""
    table: tuple[int, ...] = ()
    """What the sums of strides point into, where they are not the ranks themselves."""

    @classmethod
    def of(cls, ranks: Sequence[int], shape: Sequence[int]) -> Layout:
        """Of explicit ranks, row-major; by strides where there are any."""
        dims = row_major(shape)
        steps = [
            [(size, ranks[stride] - ranks[0])] if size > 1 else [(1, stride)] for ((size, stride),) in dims
        ]
        strided = cls(tuple(map(tuple, steps)), ranks[0])
        nested = all(size == 1 or stride > 0 for ((size, stride),) in strided.dims) and strided._nested
        return (
            strided
            if nested and strided.ranks(strided.dims, strided.start) == tuple(ranks)
            else cls(dims, 0, tuple(ranks))
        )

    @cached_property
    def _digits(self) -> tuple[tuple[int, int, int, int], ...]:
        """(stride, size, dim, what an index counts in that dim) of every digit, the largest stride first."""
        found = [
            (stride, size, number, size_of(dim[place + 1 :]))
            for number, dim in enumerate(self.dims)
            for place, (size, stride) in enumerate(dim)
            if size > 1
        ]
        return tuple(sorted(found, reverse=True))

    @property
    def _nested(self) -> bool:
        """Whether a sum of strides can be taken apart again, largest stride first."""
        reach = 0
        for stride, size, _, _ in reversed(self._digits):
            if stride <= reach:
                return False
            reach += stride * (size - 1)
        return True

    @cached_property
    def _where(self) -> dict[int, int]:
        return {rank: position for position, rank in enumerate(self.table)}

    def rank(self, indices: Iterable[int]) -> int:
        """The rank at these indices, one for each dim."""
        place = self.start + sum(offset(dim, index) for dim, index in zip(self.dims, indices, strict=True))
        return self.table[place] if self.table else place

    def indices(self, rank: int) -> list[int] | None:
        """Where a rank is, an index for each dim; none for a rank that is not there."""
        left = self._position(rank) - self.start
        found = [0] * len(self.dims)
        for stride, size, number, counts in self._digits:
            index = left // stride
            if not 0 <= index < size:
                return None
            left -= index * stride
            found[number] += index * counts
        return None if left else found

    def _position(self, rank: int) -> int:
        return self._where.get(rank, -1) if self.table else rank

    def ranks(self, dims: Iterable[Dim], corner: int) -> tuple[int, ...]:
        """The ranks along some dims from the position `corner`, the last dim fastest."""
        return (
            tuple(self.at(corner + step) for step in offsets(dims))
            if self.table
            else tuple(corner + step for step in offsets(dims))
        )

    def at(self, position: int) -> int:
        return self.table[position] if self.table else position

    def corner(self, indices: Sequence[int], dims: Iterable[int]) -> int:
        """The position of the first along `dims` (by number), all other indices as they are."""
        free = set(dims)
        return self.start + sum(
            offset(self.dims[number], index) for number, index in enumerate(indices) if number not in free
        )
