"""Property tests of the taking of passes: adversarial ends, empty passes, and resumes on other ranks."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.topology.take import Row, RowError, Taking

PASSES = int(os.environ.get("MESHCTL_TAKE_PASSES", "120"))
"""The approximate number of passes of each run; more in `make nightly`."""


class Ranks:
    """Data ranks that each keep their own state, and end passes in an adversarial order."""

    def __init__(self, sizes: tuple[int, int, int], random: Random) -> None:
        self.sizes, self.random = sizes, random
        self.begin_on(random.randint(1, 5), 0, {})
        self.trained: list[int] = []
        self.empty: list[int] = []
        self.ages: list[int] = []

    def begin_on(self, ranks: int, following: int, open: dict[int, int]) -> None:
        self.states = [Taking(*self.sizes, ranks, following, open) for _ in range(ranks)]
        self.running = [{n for n, one in self.states[0].open.items() if one.rank == r} for r in range(ranks)]

    def resume(self) -> None:
        """Continues on another number of ranks, where the open passes run again."""
        first = self.states[0]
        self.begin_on(self.random.randint(1, 5), first.next, {n: one.dealt for n, one in first.open.items()})

    def step(self, step: int, last: int, empties: float) -> None:
        for state in self.states:
            state.begin(step)
        starving = self.random.choice([0.02, 0.3, 1.0])
        while not self.states[0].is_full:
            dealt = [state.deal(last) for state in self.states]
            assert all(one == dealt[0] for one in dealt)
            for number, rank in dealt[0].items():
                self.running[rank].add(number)
            rows = [self.row(own, starving, empties) for own in self.running]
            for state in self.states:
                state.receive(rows)
            assert all(vars(state) == vars(self.states[0]) for state in self.states)
        first = self.states[0]
        self.trained += [one.number for one in first.batch]
        self.empty += first.empty
        self.ages += [one.age for one in first.batch]

    def row(self, own: set[int], likely: float, empties: float) -> Row:
        # the oldest passes end last, as the longest answers do
        ended = [n for n in own if self.random.random() < likely * (0.1 if n == min(own) else 1.0)]
        own.difference_update(ended)
        empty = [n for n in ended if self.random.random() < empties]
        return [n for n in ended if n not in empty], empty


@given(
    take=st.integers(1, 6),
    ahead=st.integers(0, 3),
    late=st.integers(0, 3),
    empties=st.sampled_from([0.0, 0.3, 0.8]),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=40)
def test_each_number_is_trained_once_within_its_bound(
    take: int, ahead: int, late: int, empties: float, seed: int
) -> None:
    random = Random(seed)
    ranks, last = Ranks((take, ahead, late), random), max(2, PASSES // take // 4)
    for step in range(1, last + 1):
        ranks.step(step, last, empties)
        if random.random() < 0.2:
            ranks.resume()
    assert len(ranks.trained) == last * take
    assert max(ranks.ages) <= ahead + late
    ended = sorted(ranks.trained + ranks.empty)
    assert ended == [*range(ranks.states[0].next)]
    assert not ranks.states[0].open
    if not late:
        assert ranks.trained == sorted(ranks.trained)


def test_the_bound_is_reached() -> None:
    ages = list[int]()
    for seed in range(8):
        ranks = Ranks((3, 1, 1), Random(seed))
        for step in range(1, 40):
            ranks.step(step, 99, 0.0)
        ages += ranks.ages
    assert max(ages) == 2


def test_a_smaller_ahead_deals_nothing_until_enough_passes_were_taken() -> None:
    state = Taking(take=2, ahead=0, late=0, ranks=1, next=6, open=dict.fromkeys(range(6), 3))
    state.begin(4)
    assert not state.deal(last=9)


@pytest.mark.parametrize("row", [([0], []), ([7], []), ([], [7])])
def test_a_row_of_another_rank_is_an_error(row: Row) -> None:
    state = Taking(take=2, ahead=0, late=0, ranks=2)
    state.begin(1)
    state.deal(last=1)
    with pytest.raises(RowError, match="does not run on data rank 1"):
        state.receive([([], []), row])
