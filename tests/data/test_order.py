"""Orders of rows: permutations that depend on their words alone. And packs: each text once, no row too long, and few
rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.data.examples import joined, packed
from meshctl.data.rows import Permutation


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


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_have_bounds(position: int) -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0)[position]


@given(st.lists(st.integers(1, 20), max_size=80))
def test_each_text_is_in_one_row_that_is_not_too_long(lengths: list[int]) -> None:
    rows = packed(lengths, 20)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= 20 for row in rows)
    half_full = [row for row in rows if sum(lengths[index] for index in row) <= 10]
    assert len(half_full) <= 1, "two of them would fit in one row"


def test_the_best_space_is_used() -> None:
    assert packed([6, 4, 5, 5, 3], 10) == [[0, 1], [2, 3], [4]]
    assert packed([7, 8, 2, 3], 10) == [[1, 2], [0, 3]]


def test_positions_restart_and_segments_are_numbered() -> None:
    one = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    other = {"input_ids": [4, 5], "labels": [-100, 5]}
    assert joined([one, other]) == {
        "input_ids": [1, 2, 3, 4, 5],
        "labels": [-100, 2, 3, -100, 5],
        "position_ids": [0, 1, 2, 0, 1],
        "segment_ids": [0, 0, 0, 1, 1],
    }
