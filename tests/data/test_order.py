"""Orders of rows: permutations that depend on their words alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.data.order import Permutation


@given(st.integers(0, 300), st.integers())
def test_every_number_occurs_once(size: int, seed: int) -> None:
    assert sorted(Permutation(size, seed)) == list(range(size))


def test_words_decide_the_order() -> None:
    orders = [list(Permutation(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert list(Permutation(50, 1, 2)) == orders[5]


def test_the_order_is_the_same_in_every_version() -> None:
    assert list(Permutation(10, 0, 0)) == GOLDEN


GOLDEN = [2, 8, 3, 1, 0, 4, 9, 6, 5, 7]


def test_a_large_order_needs_no_memory() -> None:
    order = Permutation(10**15, 7)
    numbers = [order[position] for position in range(100)]
    assert len(set(numbers)) == 100 and max(numbers) > 10**14


def test_neighbours_are_far_apart() -> None:
    order = Permutation(10_000, 3)
    gaps = [abs(order[n] - order[n + 1]) for n in range(9_999)]
    assert 3_000 < sum(gaps) / len(gaps) < 3_700  # a third of the size, for an even distribution


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_have_bounds(position: int) -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0)[position]
