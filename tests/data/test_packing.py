"""Packing: each text once, no row too long, and few rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.data.examples import joined, packed


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
