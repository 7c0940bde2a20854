"""What stays where it is when one mesh hands over to another over the same ranks: batches, and weights.

    kept      the part of an even batch that somebody who needs it has already: 1 for equal meshes
    holding   how many ranks hold something of the weights that they load: all for equal meshes

Both count ranks whose shares meet, and never list them. Every index of a rank is a sum over digits of the
rank; where the digits of both meshes nest, the ranks are walked digit by digit, and whatever cannot meet any
more is left out at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import prod

from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.strides import Dim, join, size_of, split

BUDGET = 5_000
"""Steps of one count; beyond them it says that it does not know."""

Value = tuple[int, ...]
"""What a digit adds to the indices: giver's and taker's of the first cut, then of the next."""


@dataclass(frozen=True)
class Cut:
    """Something that both meshes cut into even parts: a rank has part x of one cut and part y of the other,
    and they meet or not."""

    giver: Dim
    taker: Dim

    @cached_property
    def giver_parts(self) -> int:
        return size_of(self.giver)

    @cached_property
    def taker_parts(self) -> int:
        return size_of(self.taker)


@dataclass(frozen=True)
class Digit:
    """A part of the rank: what each of its values adds to the indices, and how many ranks have that."""

    size: int
    adds: Value = ()
    """Per step, where it is even."""
    table: tuple[tuple[Value, int], ...] = ()
    """(what is added, how many values add it), where it is not."""

    @property
    def most(self) -> Value:
        if not self.table:
            return tuple((self.size - 1) * each for each in self.adds)
        return tuple(max(value[i] for value, _ in self.table) for i in range(len(self.table[0][0])))


class Unknown(Exception):
    """More steps than are worth it."""


def kept(giver: DeviceMesh, taker: DeviceMesh, seats: Sequence[int] = ()) -> Fraction | None:
    """The part of an even batch that need not move: a worker of its data rank needs it.

    `seats` says for each rank of the giver which rank of the taker is there, where it is not the same. None
    where that is too long to count.
    """
    had, needed = data_digits(giver), data_digits(taker)
    if had is None or needed is None:
        return None
    cut = Cut(had, needed)
    met = _counted([cut], giver.world_size, seats, weigh=True)
    return None if met is None else Fraction(met, cut.giver_parts * cut.taker_parts)


def holding(giver: DeviceMesh, taker: DeviceMesh, seats: Sequence[int] = ()) -> int | None:
    """How many ranks hold something that they load, as far as the meshes decide it. None where that is too
    long to count.

    Layers are cut by pp, every layer by tp, and its rows by fsdp; whether a rank keeps rows is certain only
    where tp cuts both alike.
    """
    cuts = [Cut(_digits(giver, dim), _digits(taker, dim)) for dim in _certain(giver, taker)]
    return _counted(cuts, giver.world_size, seats, weigh=False)


def _counted(cuts: Sequence[Cut], world: int, seats: Sequence[int], weigh: bool) -> int | None:
    if seats:
        return _listed(cuts, seats, weigh) if world <= BUDGET else None
    try:
        return _Count(cuts, world, weigh).total()
    except Unknown:
        return None


def _listed(cuts: Sequence[Cut], seats: Sequence[int], weigh: bool) -> int:
    """Rank by rank."""
    found = [
        tuple((_index(cut.giver, rank), _index(cut.taker, seat)) for cut in cuts)
        for rank, seat in enumerate(seats)
    ]
    met = [
        pairs
        for pairs in found
        if all(_overlap(cut, *pair) > 0 for cut, pair in zip(cuts, pairs, strict=True))
    ]
    return sum(_overlap(cuts[0], *pair) for pair in {pairs[0] for pairs in met}) if weigh else len(met)


def _overlap(cut: Cut, x: int, y: int) -> int:
    """What two parts share, in parts of both; not above 0 where they do not meet."""
    begin, other = x * cut.taker_parts, y * cut.giver_parts
    return min(begin + cut.taker_parts, other + cut.giver_parts) - max(begin, other)


def data_digits(mesh: DeviceMesh) -> Dim | None:
    """The digits of a data rank; none where ulysses parts dp and fsdp in no such way."""
    parted = split(join((_digits(mesh, "dp"), _digits(mesh, "fsdp"))), mesh.ulysses_size)
    return parted[0] if parted else None


def _digits(mesh: DeviceMesh, dim: str) -> Dim:
    size, stride = mesh.size(dim), mesh.stride(dim)
    return ((size, stride),) if size > 1 and stride is not None else ()


def _certain(giver: DeviceMesh, taker: DeviceMesh) -> Iterable[str]:
    if (giver.vpp_size, taker.vpp_size) == (1, 1) or (giver.size("pp"), giver.vpp_size) == (
        taker.size("pp"),
        taker.vpp_size,
    ):
        yield "pp"
    if giver.ep_size * giver.etp_size * taker.ep_size * taker.etp_size > 1:
        return
    yield "tp"
    if giver.size("tp") == taker.size("tp") and giver.size("cp") == taker.size("cp") == 1:
        yield "fsdp"


class _Count:
    """Walks the digits of the ranks, those that decide most first; the largest is counted at once."""

    def __init__(self, cuts: Sequence[Cut], world: int, weigh: bool) -> None:
        self.weigh = weigh
        """Whether the length of what meets in the first cut is counted, each pair of parts once, or the
        ranks."""
        self.cuts = [
            cut
            for i, cut in enumerate(cuts)
            if min(cut.giver_parts, cut.taker_parts) > 1 or (weigh and i == 0)
        ]
        digits = list(_common(self.cuts, world, distinct=weigh))
        self.times = prod(digit.size for digit in digits if not any(digit.most)) if not weigh else 1
        self.digits = sorted((digit for digit in digits if any(digit.most)), key=self._decides, reverse=True)
        if even := [digit for digit in self.digits if digit.adds]:
            largest = max(even, key=lambda digit: digit.size)
            self.digits = [digit for digit in self.digits if digit is not largest] + [largest]
        self.left = [(0,) * 2 * len(self.cuts)]
        """What the digits from each on may still add."""
        for digit in reversed(self.digits):
            self.left.insert(0, _plus(self.left[0], digit.most))
        self.steps = 0

    def _decides(self, digit: Digit) -> Fraction:
        parts = [part for cut in self.cuts for part in (cut.giver_parts, cut.taker_parts)]
        return max(Fraction(most, part) for most, part in zip(digit.most, parts, strict=True))

    def total(self) -> int:
        return self._from(0, self.left[-1]) * self.times

    def _from(self, number: int, at: Value) -> int:
        self.steps += 1
        if self.steps > BUDGET:
            raise Unknown
        if number == len(self.digits):
            return self._met(at) if self._may_meet(at, self.left[number]) else 0
        digit, left = self.digits[number], self.left[number + 1]
        if digit.table:
            return sum(
                self._from(number + 1, there) * times
                for value, times in digit.table
                if self._may_meet(there := _plus(at, value), left)
            )
        values = self._values(digit, at, left)
        if number + 1 == len(self.digits) and values:
            return self._sum(digit, at, values)
        return sum(self._from(number + 1, _plus(at, digit.adds, value)) for value in values)

    def _may_meet(self, at: Value, left: Value) -> bool:
        """Whether all cuts can, whatever the digits that are left add."""
        return all(
            at[2 * i] * cut.taker_parts < (at[2 * i + 1] + left[2 * i + 1] + 1) * cut.giver_parts
            and at[2 * i + 1] * cut.giver_parts < (at[2 * i] + left[2 * i] + 1) * cut.taker_parts
            for i, cut in enumerate(self.cuts)
        )

    def _values(self, digit: Digit, at: Value, left: Value) -> range:
        """The values of a digit with which all cuts may still meet."""
        first, last = 0, digit.size - 1
        for i, cut in enumerate(self.cuts):
            x, y, more_x, more_y = at[2 * i], at[2 * i + 1], left[2 * i], left[2 * i + 1]
            apart = x * cut.taker_parts - y * cut.giver_parts
            step = digit.adds[2 * i] * cut.taker_parts - digit.adds[2 * i + 1] * cut.giver_parts
            below, above = -(more_x + 1) * cut.taker_parts - apart, (more_y + 1) * cut.giver_parts - apart
            if step < 0:
                below, above, step = -above, -below, -step
            if step:
                first, last = max(first, below // step + 1), min(last, -(-above // step) - 1)
            elif not below < 0 < above:
                return range(0)
        return range(first, last + 1)

    def _met(self, at: Value) -> int:
        """What meets of the first cut, in parts of both."""
        if not self.weigh:
            return 1
        return _overlap(self.cuts[0], at[0], at[1])

    def _sum(self, digit: Digit, at: Value, values: range) -> int:
        """The same over all values of the last digit: two arithmetic series, each cut off."""
        if not self.weigh:
            return len(values)
        cut = self.cuts[0]
        apart = at[0] * cut.taker_parts - at[1] * cut.giver_parts
        step = digit.adds[0] * cut.taker_parts - digit.adds[1] * cut.giver_parts
        return _capped(apart + cut.taker_parts, step, values, cut.giver_parts) + _capped(
            -apart, -step, values, 0
        )


def _capped(start: int, step: int, values: range, cap: int) -> int:
    """The sum of min(start + step * value, cap)."""
    if step < 0:
        start, step, values = start + step * (values.start + values.stop - 1), -step, values
    if not step:
        return len(values) * min(start, cap)
    under = min(max((cap - start) // step + 1, values.start), values.stop)
    count = under - values.start
    return count * start + step * (values.start + under - 1) * count // 2 + (values.stop - under) * cap


def _plus(at: Value, adds: Value, times: int = 1) -> Value:
    return tuple(one + times * more for one, more in zip(at, adds, strict=True))


def _common(cuts: Sequence[Cut], world: int, distinct: bool) -> Iterable[Digit]:
    """Digits of the rank in which every index of every cut is a sum."""
    dims = [dim for cut in cuts for dim in (cut.giver, cut.taker)]
    bounds = sorted(
        {1, world, *(bound for dim in dims for size, stride in dim for bound in (stride, stride * size))}
    )
    nested = [bound for bound in bounds if all(bound % other == 0 or other % bound == 0 for other in bounds)]
    for low, high in pairwise(nested):
        size = high // low
        if not any(low < bound < high for bound in bounds):
            yield Digit(size, tuple(_index(dim, low) for dim in dims))
            continue
        if size > BUDGET:
            raise Unknown
        table: dict[Value, int] = {}
        for value in range(size):
            added = tuple(_index(dim, value * low) for dim in dims)
            table[added] = 1 if distinct else table.get(added, 0) + 1
        yield Digit(size, table=tuple(table.items()))


def _index(dim: Dim, rank: int) -> int:
    """The index of a rank in a dim, by its digits."""
    index = 0
    for size, stride in dim:
        index = index * size + rank // stride % size
    return index
