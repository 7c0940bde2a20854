"""Rows are written only where there is room for them, and ids in a grid keep their values."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.batch.ids import grid_of, ids_of
from meshctl.runtime.routes.rows import (
    RowRange,
    fill,
)
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.topology.samples import Grid

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@given(st.integers(-5, 20), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_evenly_numbered_ids_are_a_grid_and_come_back(start: int, shape: list[int]) -> None:
    grid = Grid(start, tuple(shape))
    ids = torch.tensor(list(grid))
    assert grid_of(ids) == grid
    assert torch.equal(ids_of(grid), ids)


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=9))
def test_a_grid_is_found_only_where_it_is_the_ids(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows, dtype=torch.int64).view(len(rows), 2)
    grid = grid_of(ids)
    if grid is None:
        boxes = [Grid(start, (one, two)) for start, one, two in product(range(4), range(1, 5), range(1, 5))]
        assert [tuple(row) for row in rows] not in [list(box) for box in boxes]
    else:
        assert [tuple(row) for row in rows] == list(grid)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (torch.zeros(5, 3), "rows past its end"),
        (torch.zeros(8, 3, dtype=torch.float64), "another dtype"),
        (torch.zeros(8, 4), "another row"),
        (torch.zeros(8), "no row"),
        (Ragged(torch.zeros(15), torch.arange(9) * 2), "values past the end"),
        (Ragged(torch.zeros(16, dtype=torch.int64), torch.arange(9) * 2), "values of another dtype"),
        (Ragged(torch.zeros(16), torch.tensor([-3, 2, 4, 6, -8, 10, 12, 14, 16])), "places before it"),
    ],
)
@pytest.mark.parametrize(
    "ranges",
    [[RowRange(4, 0, 4)], [RowRange(4, 0, 2), RowRange(6, 2, 4)], [RowRange(0, 0, 1), RowRange(4, 0, 4)]],
)
def test_a_frame_without_room_for_what_is_given_is_refused(
    target: Tensor | Ragged, why: str, ranges: list[RowRange]
) -> None:
    """Whatever the layout of a frame states, no write is past its end."""
    given = Batch(
        {"x": Ragged(torch.ones(8), torch.arange(5) * 2) if isinstance(target, Ragged) else torch.ones(4, 3)}
    )
    with pytest.raises(FrameError, match="no room for rows of"):
        fill(batch_of(target), given, ranges)


def batch_of(column: Tensor | Ragged) -> Batch:
    return Batch({"x": column})
