"""The ranks of a mesh by strides: a dim has one or more digits, and a rank is a sum of strides.

    dim      digits, outermost first: ((size, stride), ...), usually one. Index 5 of ((2, 8), (4, 1)) has the
             digits 1 and 1, so its rank is that of index 0 plus 9
    join     concatenates the digits of several dims: a flattened dim
    split    divides a dim into an outer and an inner one: views factor the same ranks anew

A `Layout` adds the first rank, and a table of the ranks where strides cannot describe them. Functions list
ranks only where their result is a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod

from meshctl.dataclass import dataclass

Dim = tuple[tuple[int, int], ...]


def row_major(shape: Sequence[int]) -> tuple[Dim, ...]:
    """Returns the dims of ranks that are numbered with the last dim fastest."""
    return tuple(((size, prod(shape[index + 1 :])),) for index, size in enumerate(shape))


def size_of(dim: Dim) -> int:
    return prod(size for size, _ in dim)


def join(dims: Iterable[Dim]) -> Dim:
    """Returns one dim whose index counts through `dims`, the last one the fastest. It has as few digits as
    possible."""
    joined: list[tuple[int, int]] = []
    for size, stride in (digit for dim in dims for digit in dim if digit[0] > 1):
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return tuple(joined)


def split(dim: Dim, inner: int) -> tuple[Dim, Dim] | None:
    """Returns the dim as an outer dim and an inner one of size `inner`; None if a digit cannot be divided
    evenly."""
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
    """Returns the distance between the indices 0 and `index` of a dim, in ranks."""
    found = 0
    for size, stride in reversed(dim):
        index, digit = divmod(index, size)
        found += digit * stride
    return found


def offsets(dims: Iterable[Dim]) -> list[int]:
    """Returns the distance in ranks of each combination of indices from the combination (0, 0, ...). The last
    dim is the fastest."""
    found = [0]
    for size, stride in (digit for dim in dims for digit in dim):
        found = [base + index * stride for base in found for index in range(size)]
    return found


@dataclass(frozen=True)
class Layout:
    """The map from the indices of a mesh to ranks, by strides where they can describe it, otherwise by a
    table."""

    dims: tuple[Dim, ...]
    start: int = 0
    """The position whose indices are all 0."""
    table: tuple[int, ...] = ()
    """The ranks by position, where a position is `start` and a sum of strides; empty if the position is
    the rank itself."""

    @classmethod
    def of(cls, ranks: Sequence[int], shape: Sequence[int]) -> Layout:
        """Returns the layout of an array of ranks, given as a row-major list and a shape. It has a table only
        if strides cannot describe the ranks."""
        dims = row_major(shape)
        steps = [
            [(size, ranks[stride] - ranks[0])] if size > 1 else [(1, stride)] for ((size, stride),) in dims
        ]
        strided = cls(tuple(map(tuple, steps)), ranks[0])
        nested = all(size == 1 or stride > 0 for ((size, stride),) in strided.dims) and strided._nested
        if nested and strided.ranks(strided.dims, strided.start) == tuple(ranks):
            return strided
        return cls(dims, 0, tuple(ranks))

    @cached_property
    def _digits(self) -> tuple[tuple[int, int, int, int], ...]:
        """For every digit, the largest stride first: (stride, size, number of its dim, product of the sizes
        of the faster digits of that dim)."""
        found = [
            (stride, size, number, size_of(dim[at + 1 :]))
            for number, dim in enumerate(self.dims)
            for at, (size, stride) in enumerate(dim)
            if size > 1
        ]
        return tuple(sorted(found, reverse=True))

    @property
    def _nested(self) -> bool:
        """True if each stride is larger than all sums of smaller strides, so that dividing a sum by the
        strides, the largest first, recovers the digits."""
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
        """Returns the rank at these indices, one for each dim."""
        position = self.start + sum(offset(dim, index) for dim, index in zip(self.dims, indices, strict=True))
        return self.at(position)

    def indices(self, rank: int) -> list[int] | None:
        """Returns the indices of a rank, one for each dim; None for a rank that the layout does not have."""
        left = (self._where.get(rank, -1) if self.table else rank) - self.start
        found = [0] * len(self.dims)
        for stride, size, number, counts in self._digits:
            index = left // stride
            if not 0 <= index < size:
                return None
            left -= index * stride
            found[number] += index * counts
        return None if left else found

    def ranks(self, dims: Iterable[Dim], corner: int) -> tuple[int, ...]:
        """Returns the ranks along some dims from the position `corner`, the last dim the fastest."""
        if not self.table:
            return tuple(corner + step for step in offsets(dims))
        return tuple(self.table[corner + step] for step in offsets(dims))

    def at(self, position: int) -> int:
        return self.table[position] if self.table else position

    def corner(self, indices: Sequence[int], dims: Iterable[int]) -> int:
        """Returns the position that has the index 0 in the dims with the numbers `dims`, and the given
        indices in all others."""
        free = set(dims)
        return self.start + sum(
            offset(self.dims[number], index) for number, index in enumerate(indices) if number not in free
        )
