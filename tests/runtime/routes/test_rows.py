"""`fill` writes the rows that indexing returns, and ids in a grid keep their values."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.batch.ids import grid_of, ids_of
from meshctl.runtime.routes.rows import (
    RowRange,
    dtype_of,
    empty_like,
    fill,
    gather,
    lengths_of,
    packed,
    ranges_of,
    schema_of,
)
from meshctl.runtime.transports.buffers.frames import Frame, FrameError, unpack
from meshctl.topology.samples import Grid, Run
from tests.examples import examples

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
ROWS = 12


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def tensors(draw: st.DrawFn, rows: int) -> Tensor:
    """Draws tensors of every dtype, with rows of any shape, possibly empty or not contiguous."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 9))
    match draw(st.sampled_from(["plain", "steps", "turned", "expanded", "grad"])):
        case "steps":
            return numbers((rows * 2, *shape), dtype, seed)[::2]
        case "turned":
            return numbers((*shape[::-1], rows), dtype, seed).permute(*range(len(shape), -1, -1))
        case "expanded":
            return numbers((1, *shape), dtype, seed).expand(rows, *shape)
        case "grad" if dtype.is_floating_point:
            return numbers((rows, *shape), dtype, seed).requires_grad_()
    return numbers((rows, *shape), dtype, seed)


@st.composite
def raggeds(draw: st.DrawFn, rows: int) -> Ragged:
    lengths = torch.tensor(
        [0, *draw(st.lists(st.sampled_from([0, 0, 1, 2, 7]), min_size=rows, max_size=rows))]
    )
    return Ragged(draw(tensors(int(lengths.sum()))), lengths.cumsum(0))


@st.composite
def batches(draw: st.DrawFn, rows: int = ROWS, plain: bool = True) -> Batch:
    kinds: list[Any] = [tensors(rows), raggeds(rows)]
    if plain:
        kinds.append(st.lists(st.none() | st.text(max_size=2), min_size=rows, max_size=rows))
    columns = {
        str(index): draw(kind)
        for index, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)))
    }
    return Batch(columns, ids=torch.arange(rows * 2).view(rows, 2), group_depth=1)


@st.composite
def dealt(draw: st.DrawFn, rows: int = ROWS, producers: int = 3) -> list[Run]:
    """Draws a part: runs of several producers in any order, which do not overlap."""
    found = []
    for producer in range(producers):
        cuts = sorted(draw(st.sets(st.integers(0, rows), max_size=6)))
        found += [Run(producer, start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=False)]
    return list(draw(st.permutations(found)))


def rows_of(ranges: list[RowRange]) -> list[int]:
    return [row for each in ranges for row in range(each.start, each.stop)]


def alike(one: Batch, other: Batch) -> None:
    assert one.columns.keys() == other.columns.keys() and len(one) == len(other)
    assert torch.equal(one.ids, other.ids) and one.group_depth == other.group_depth
    for name, column in one.columns.items():
        theirs = other[name]
        if isinstance(column, Ragged):
            assert torch.equal(column.offsets, theirs.offsets) and same(column.values, theirs.values)
        elif isinstance(column, Tensor):
            assert same(column, theirs)
        else:
            assert column == theirs


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@settings(max_examples=examples(100, 3000))
@given(batches(), dealt())
def test_a_frame_of_selected_rows_equals_the_result_of_take(batch: Batch, part: list[Run]) -> None:
    ranges = packed(ranges_of(part, 1))
    frame = Frame(gather(batch, ranges))
    memory = torch.full((frame.nbytes,), 0x55, dtype=torch.uint8)
    got = unpack(frame.write(memory))
    if len(ranges) > 1:
        fill(got, batch, ranges)
    alike(got, batch.take(rows_of(ranges)))
    assert not [
        column for column in got.columns.values() if isinstance(column, Tensor) and column.requires_grad
    ]


@settings(max_examples=examples(80, 2000))
@given(st.data(), dealt())
def test_what_several_write_into_one_frame_is_their_rows_in_order(
    data: st.DataObject, part: list[Run]
) -> None:
    model = data.draw(batches(plain=False))
    held = [model]
    for seed in (1, 2):  # the same columns with other rows
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed)).tolist()
        held.append(model.take(order))
    whole = Batch.concat(held)
    expected = whole.take([run.producer * ROWS + row for run in part for row in range(run.start, run.stop)])
    schema, lengths = schema_of(model), lengths_of(expected)
    frame = Frame(empty_like(schema, len(expected), lengths, expected.ids, 1))
    memory = frame.write(torch.full((frame.nbytes,), 0x55, dtype=torch.uint8))
    for producer in data.draw(st.permutations(range(3))):
        fill(unpack(memory), held[producer], ranges_of(part, producer))
    alike(unpack(memory), expected)


@given(st.integers(-5, 20), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_evenly_numbered_ids_are_a_grid_and_come_back(
    start: int, shape: list[int], data: st.DataObject
) -> None:
    grid = Grid(start, tuple(shape))
    ids = torch.tensor(list(grid))
    assert grid_of(ids) == grid
    assert torch.equal(ids_of(grid, 0, len(grid)), ids)
    first = data.draw(st.integers(0, len(grid)))
    last = data.draw(st.integers(first, len(grid)))
    assert torch.equal(ids_of(grid, first, last), ids[first:last])


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=9))
def test_a_grid_is_found_only_where_it_is_the_ids(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows, dtype=torch.int64).view(len(rows), 2)
    grid = grid_of(ids)
    if grid is None:
        boxes = [Grid(start, (one, two)) for start, one, two in product(range(4), range(1, 5), range(1, 5))]
        assert [tuple(row) for row in rows] not in [list(box) for box in boxes]
    else:
        assert [tuple(row) for row in rows] == list(grid)


@pytest.mark.parametrize("name", ["torch.load", "load", "", "torch.", "float33", "Tensor"])
def test_a_dtype_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(FrameError, match="unknown dtype"):
        dtype_of(name)


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
