"""The samples of one step: their ids, and which producer of a route holds which of them.

A sample's id is a tuple of integers: (17,) for sample 17, and (17, 3) for the fourth sample made from it.
Sample order is the order of ids. Neighbouring samples move together: a part of a batch is a list of `Run`s,
and ids that are numbered evenly are a `Grid`, which is never listed. An even batch therefore costs the same
whatever its number of samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple, overload

from meshctl.dataclass import dataclass

Id = tuple[int, ...]


class RouteError(ValueError):
    """Samples that cannot be partitioned as the recipe requests. The message contains the numbers; the caller
    adds the route and the step."""


class Run(NamedTuple):
    """Neighbouring samples of one producer's batch."""

    producer: int
    """The producer's index among the producers of the route."""
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Grid(Sequence[Id]):
    """Ids that count through a box, the last number fastest: `Grid(17, (2, 2))` is (17, 0) (17, 1) (18, 0)
    (18, 1)."""

    start: int
    """The first number of the first id. Its other numbers are 0."""
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return prod(self.shape)

    @property
    def first(self) -> Id:
        return self.start, *(0 for _ in self.shape[1:])

    @property
    def last(self) -> Id:
        return self.start + self.shape[0] - 1, *(size - 1 for size in self.shape[1:])

    @overload
    def __getitem__(self, index: int) -> Id: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Id, ...]: ...
    def __getitem__(self, index: int | slice) -> Id | tuple[Id, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        rest, digits = index % len(self), list[int]()
        for size in reversed(self.shape):
            rest, digit = divmod(rest, size)
            digits.append(digit)
        digits[-1] += self.start
        return tuple(reversed(digits))


@dataclass(frozen=True)
class SampleTable:
    """The samples of a route's producers in one step. Producers and consumers partition a batch by this table
    only, so that every rank computes the same parts without a coordinator."""

    ids: tuple[Sequence[Id], ...]
    """Per producer, the ids of its samples in the order of its batch."""
    lengths: tuple[Any, ...] | None = None
    """Per producer, the number of tokens of each sample: sequences or arrays of integers. Only where
    the dispatch balances tokens."""
    homes: tuple[Sequence[int], ...] | None = None
    """Per producer, the data rank that each sample returns to. Only where the dispatch has a `home`."""
    group_depth: int = 0
    """The number of leading integers of an id that form its `group_id`; 0 if samples belong to no group."""

    @cached_property
    def total(self) -> int:
        return sum(map(len, self.ids))

    @cached_property
    def in_order(self) -> tuple[Run, ...]:
        """All samples in sample order, as runs."""
        if self._is_even:
            sizes = enumerate(map(len, self.ids))
            return tuple([Run(producer, 0, size) for producer, size in sizes if size])
        return tuple(merge_runs(sample_order(self)))

    @cached_property
    def _begins(self) -> list[int]:
        """The position, in sample order, of the first sample of each run of `in_order`."""
        return list(accumulate([stop - start for _, start, stop in self.in_order], initial=0))

    @cached_property
    def _is_even(self) -> bool:
        """True if the ids of each producer with samples are a grid, and larger than those of the producers
        before it."""
        next_number: int | None = None
        for ids in self.ids:
            if isinstance(ids, Grid):
                if next_number is not None and ids.start < next_number:
                    return False
                next_number = ids.start + ids.shape[0]
            elif len(ids):
                return False
        return True

    def group_size(self, depth: int) -> int:
        """The number of samples in each group, where the samples of a group have the same first `depth`
        numbers in their ids. 1 for depth 0 or without samples; 0 if groups differ in size, or the ids of a
        producer are not a grid."""
        if not depth:
            return 1
        filled = [ids for ids in self.ids if len(ids)]
        sizes = {prod(ids.shape[depth:]) if isinstance(ids, Grid) else 0 for ids in filled}
        if not sizes:
            return 1
        return sizes.pop() if len(sizes) == 1 else 0

    def ids_of(self, part: Sequence[Run]) -> list[Id]:
        """The ids of the samples of a part, in the order of its runs."""
        return [self.ids[run.producer][index] for run in part for index in range(run.start, run.stop)]

    def key_of(self, part: Sequence[Run]) -> tuple[object, ...]:
        """A hashable key that is equal for parts with the same ids in the same order. Ids are listed only
        where they are not grids of one inner shape."""
        inner: set[tuple[int, ...]] = set()
        spans: list[tuple[int, int]] = []
        for run in part:
            ids = self.ids[run.producer]
            if not isinstance(ids, Grid):
                return tuple(self.ids_of(part))
            first = ids.start * prod(ids.shape[1:])
            inner.add(ids.shape[1:])
            if spans and spans[-1][1] == first + run.start:
                spans[-1] = spans[-1][0], first + run.stop
            else:
                spans.append((first + run.start, first + run.stop))
        return (tuple(inner), *spans) if len(inner) < 2 else tuple(self.ids_of(part))

    def select(self, positions: Iterable[int]) -> list[Run]:
        """The samples at these positions of the sample order: `table.select(range(0, table.total, 2))` is
        every second sample. The result is in sample order."""
        return self.between((position, position + 1) for position in sorted(positions))

    def between(self, spans: Iterable[tuple[int, int]]) -> list[Run]:
        """The runs of the samples at the positions in `spans`. A span is a range [start, stop) of positions
        in sample order. The spans must not overlap and must be in rising order."""
        runs, begins = self.in_order, self._begins
        found: list[Run] = []
        for start, stop in spans:
            number = bisect_right(begins, start) - 1
            while start < stop:
                producer, first, last = runs[number]
                shift = first - begins[number]
                begin, end = start + shift, min(last, stop + shift)
                if found and found[-1].producer == producer and found[-1].stop == begin:
                    found[-1] = Run(producer, found[-1].start, end)
                else:
                    found.append(Run(producer, begin, end))
                start, number = start + end - begin, number + 1
        return found


def sample_order(table: SampleTable) -> list[tuple[int, int]]:
    """(producer, index in its batch) of every sample, in sample order. Raises `RouteError` if a sample
    occurs twice."""
    flat = [(id, producer, index) for producer, ids in enumerate(table.ids) for index, id in enumerate(ids)]
    return _each_once(sorted(flat))


def _each_once(samples: Sequence[tuple[Id, int, int]]) -> list[tuple[int, int]]:
    """(producer, index) of samples that are sorted by id. Raises `RouteError` if an id occurs twice."""
    for before, after in pairwise(samples):
        if before[0] == after[0]:
            raise RouteError(f"sample {sample_name(after[0])} occurs twice")
    return [(producer, index) for _, producer, index in samples]


def merge_runs(samples: Sequence[tuple[int, int]]) -> list[Run]:
    """Returns the runs of samples, each of which is a (producer, index). Neighbours of one producer are one
    run."""
    joined: list[Run] = []
    for producer, index in samples:
        if joined and joined[-1].producer == producer and joined[-1].stop == index:
            joined[-1] = Run(producer, joined[-1].start, index + 1)
        else:
            joined.append(Run(producer, index, index + 1))
    return joined


def in_sample_order(part: list[Run], table: SampleTable) -> list[Run]:
    """Returns the runs of a part in sample order. Runs of different producers are split where their ids
    alternate; the runs of a single producer are returned as they are."""
    if len({run.producer for run in part}) < 2:
        return part
    samples = sorted(
        (table.ids[run.producer][index], run.producer, index)
        for run in part
        for index in range(run.start, run.stop)
    )
    return merge_runs(_each_once(samples))


def align(wanted: Sequence[Id], table: SampleTable) -> list[tuple[int, int]]:
    """Returns the (producer, index) of each wanted id. Raises `RouteError` for an id that the table does not
    have."""
    where = {id: (producer, index) for producer, ids in enumerate(table.ids) for index, id in enumerate(ids)}
    try:
        return [where[id] for id in wanted]
    except KeyError as missing:
        raise RouteError(f"sample {sample_name(missing.args[0])} is missing") from None


def sample_name(id: Id) -> str:
    """An id as users read it: 17.3 for (17, 3)."""
    return ".".join(map(str, id))
