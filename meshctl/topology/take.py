"""The choice of the finished passes that a step takes, in a block with `repeat: {take, ahead, late}`.

A pass is the work on one sample of the block's source. All data ranks keep the same state, and change it by
the same rows, one of each rank, so that all decide the same:

    in each step: until the batch has `take` passes:
        deal       the next numbers, so that `take` passes of each of 1 + `ahead` steps are open
        receive    the numbers of the passes that have ended: ready, or empty, which are dropped
                   the least ready number n is taken if n <= (the least open number) + late * take

A pass that is dealt in step a is taken by step a + ahead + late. Let the batch have b passes when it is
dealt. Then at most (ahead + 1) * take - b - 1 open passes are older. While it is open, passes are taken only
up to late * take numbers after it. If it were left over at the end of that step, the steps since it was dealt
would have taken (ahead + late + 1) * take - b other passes, which is one more than there are.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple


def staleness(stages: Iterable[Any], samplers: Collection[str]) -> int:
    """Returns the greatest age of the weights with which components sample, in steps. `stages` are those of a
    plan or of a recipe."""
    syncs = (one for one in stages if one.kind == "sync" and one.to in samplers)
    return max((one.lag + one.every - 1 for one in syncs), default=0)


class OpenPass(NamedTuple):
    """A pass that was dealt and not taken."""

    rank: int
    """The data rank that runs it."""
    dealt: int
    """The step in which it was dealt."""


class TakenPass(NamedTuple):
    number: int
    rank: int
    age: int
    """The number of steps from the one in which it was dealt to the one that takes it."""


Row = tuple[Sequence[int], Sequence[int]]
"""The numbers of the passes of one data rank that have ended since its last row: (ready, empty)."""


class RowError(ValueError):
    """A row names a pass that its rank does not run."""


class Taking:
    """The state of the passes of a block. It is equal on all data ranks of the block's group."""

    def __init__(
        self, take: int, ahead: int, late: int, ranks: int, next: int = 0, open: Mapping[int, int] = {}
    ) -> None:
        """`ranks` is the number of data ranks, `next` the first number that was not dealt, and `open` maps
        the number of each pass that was dealt and not taken to the step in which it was dealt."""
        self._take, self._ahead, self._late, self._ranks = take, ahead, late, ranks
        self.next, self.step = next, 0
        self.open: dict[int, OpenPass] = {}
        """The open passes by number, in ascending order."""
        self._ready: set[int] = set()
        self.batch: list[TakenPass] = []
        """The passes that the running step has taken."""
        self.empty: list[int] = []
        """The numbers of the passes that were dropped in the running step."""
        for number, rank in zip(sorted(open), self._least_loaded(len(open)), strict=True):
            self.open[number] = OpenPass(rank, open[number])

    @property
    def is_full(self) -> bool:
        return len(self.batch) == self._take

    def begin(self, step: int) -> None:
        """Begins a step with an empty batch."""
        self.step, self.batch, self.empty = step, [], []

    def deal(self, last: int) -> dict[int, int]:
        """Deals the next numbers, each to the data rank with the fewest open passes, and returns number ->
        data rank. No step after `last` takes any."""
        steps = min(self._ahead, last - self.step) + 1
        count = max(0, steps * self._take - len(self.batch) - len(self.open))
        dealt = dict(zip(range(self.next, self.next + count), self._least_loaded(count), strict=True))
        self.open |= {number: OpenPass(rank, self.step) for number, rank in dealt.items()}
        self.next += count
        return dealt

    def _least_loaded(self, count: int) -> list[int]:
        counts = Counter(one.rank for one in self.open.values())
        ranks = [(counts[rank], rank) for rank in range(self._ranks)]
        heapq.heapify(ranks)
        found = []
        for _ in range(count):
            load, rank = ranks[0]
            heapq.heapreplace(ranks, (load + 1, rank))
            found.append(rank)
        return found

    def receive(self, rows: Iterable[Row]) -> None:
        """Notes the passes that have ended, in one row of each data rank by rank, and takes those that can be
        taken. Raises `RowError` for a number that its rank does not run."""
        for rank, (ready, empty) in enumerate(rows):
            for number in (*ready, *empty):
                if number not in self.open or self.open[number].rank != rank or number in self._ready:
                    raise RowError(f"pass {number} does not run on data rank {rank}")
            self._ready.update(ready)
            for number in empty:
                del self.open[number]
            self.empty += empty
        for number in sorted(self._ready):
            if self.is_full or number > next(iter(self.open)) + self._late * self._take:
                break
            rank, dealt = self.open.pop(number)
            self._ready.remove(number)
            taken = TakenPass(number, rank, self.step - dealt)
            assert taken.age <= self._ahead + self._late
            self.batch.append(taken)
