"""Rows of a batch on their way into a frame. The frame is laid out first; each row is then copied once, from
the producer's tensor to the memory in which the consumer reads it.

Several producers may fill one frame: all of them know from the headers of the step how many rows each one
has, so the leader lays the frame out and every producer writes its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.transports.buffers.frames import FrameError, on_device
from meshctl.runtime.transports.buffers.memcpy import is_plain, move, use_memmove
from meshctl.topology.samples import Run

INDEX_MAX_ROW_BYTES = 1 << 10
"""Rows smaller than this are gathered by an index where there are many of them."""
Schema = Mapping[str, Sequence[Any]]
"""Column -> kind, name of the dtype, shape of a row: plain data."""
Spans = list[tuple[int, int, int]]
"""One tuple per span: first row in the target, first row in the source, row after the last one in the
source."""


@dataclass(frozen=True)
class RowRange:
    """Neighbouring rows of one batch, and where they go in another."""

    at: int
    """The first row in the target."""
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def ranges_of(part: Sequence[Run], producer: int) -> list[RowRange]:
    """Returns the rows of a part that a producer holds, with their rows in the part."""
    found, at = [], 0
    for run in part:
        if run.producer == producer:
            found.append(RowRange(at, run.start, run.stop))
        at += len(run)
    return found


def packed(ranges: Sequence[RowRange]) -> list[RowRange]:
    """Returns the same rows, one after another in the target."""
    found, at = [], 0
    for each in ranges:
        found.append(RowRange(at, each.start, each.stop))
        at += len(each)
    return found


def row_index(spans: Sequence[tuple[int, int]]) -> Tensor:
    """Returns the numbers of some spans [start, stop), one span after another, int64 `[n]`."""
    starts, stops = torch.tensor(spans).unbind(1)
    counts = stops - starts
    ends = counts.cumsum(0)
    shifts: Tensor = (starts - ends + counts).repeat_interleave(counts)
    return torch.arange(int(ends[-1])) + shifts


def kind_of(column: Column) -> str:
    """Returns `tensor` or `ragged` for a column that can be laid out from its dtype and the shape of a row,
    `list` for plain data, and `device` for a column outside of this host's memory."""
    if isinstance(column, list):
        return "list"
    values = column.values if isinstance(column, Ragged) else column
    if on_device(values):
        return "device"
    return "tensor" if values is column else "ragged"


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype that a schema names (`torch.float32`)."""
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def empty_like(
    schema: Schema, rows: int, lengths: Mapping[str, Tensor], ids: Tensor, group_depth: int
) -> Batch:
    """Returns a batch of `rows` samples without values: its columns are tensors on `meta`.

    Offsets and ids are there. Columns whose lengths are the same tensor share their offsets.
    """
    columns: dict[str, Column] = {}
    offsets: dict[int, Tensor] = {}
    for name, (kind, dtype, shape) in schema.items():
        if kind == "ragged":
            bounds = offsets.get(id(lengths[name]))
            if bounds is None:
                zero = torch.zeros(1, dtype=torch.int64)
                bounds = offsets[id(lengths[name])] = torch.cat([zero, lengths[name].cumsum(0)])
            columns[name] = Ragged(_on_meta([int(bounds[-1]), *shape], dtype), bounds)
        else:
            columns[name] = _on_meta([rows, *shape], dtype)
    return Batch(columns, ids=ids, group_depth=group_depth)


def without_rows(columns: Mapping[str, Sequence[Any]]) -> dict[str, Column]:
    """Returns columns without rows, from the kind, the dtype and the shape of a row of each. A column on a
    device is made in host memory."""
    made: dict[str, Column] = {}
    for name, (kind, *layout) in columns.items():
        if kind == "list":
            made[name] = []
            continue
        empty = torch.empty((0, *layout[1]), dtype=dtype_of(layout[0])) if layout else torch.empty(0)
        made[name] = Ragged(empty, torch.zeros(1, dtype=torch.int64)) if kind == "ragged" else empty
    return made


def _on_meta(shape: Sequence[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=dtype_of(dtype), device="meta")


def gather(batch: Batch, columns: Schema, ranges: Sequence[RowRange]) -> Batch:
    """Returns some rows of a batch as a frame takes them: views where they are neighbours, else columns
    without values that `fill` fills in the frame. Columns that cannot be laid out, of which `columns` has
    only the kind, are copied."""
    if not ranges:
        return batch.between(0, 0)
    if len(ranges) == 1:
        return batch.between(ranges[0].start, ranges[0].stop)
    rows = row_index([(each.start, each.stop) for each in ranges])
    schema = {name: kind for name, kind in columns.items() if len(kind) > 1}
    lengths = {name: batch[name].lengths[rows] for name, (kind, *_) in schema.items() if kind == "ragged"}
    ids = batch.ids[rows]
    made = dict(empty_like(schema, len(ids), lengths, ids, batch.group_depth).columns)
    if others := {name: batch[name] for name in columns if name not in schema}:
        made |= Batch(others, ids=batch.ids).take(rows).columns
    return Batch(
        {name: made[name] for name in columns}, ids=ids, group_depth=batch.group_depth, most=batch.most
    )


def fill(target: Batch, source: Batch, ranges: Sequence[RowRange]) -> None:
    """Copies rows of one batch into another, column by column. Raises `FrameError` if the target has no
    such rows."""
    if not ranges:
        return
    index: Tensor | None = None
    has_tensors = any(isinstance(column, Tensor) for column in target.columns.values())
    are_neighbours = all(one.at + len(one) == other.at for one, other in pairwise(ranges))
    if has_tensors and len(ranges) > 1 and are_neighbours:
        index = row_index([(each.start, each.stop) for each in ranges])
    whole = [(each.at, each.start, each.stop) for each in ranges]
    spans: dict[tuple[int, int], Spans] = {}
    for name, column in target.columns.items():
        given = source[name]
        if kind_of(given) == "device":
            continue
        if isinstance(column, Ragged):
            alike = id(column.offsets), id(given.offsets)
            if alike not in spans:
                spans[alike] = _spans(column, given, ranges)
            _copy_rows(column.values, given.values.detach(), spans[alike])
        elif isinstance(column, Tensor):
            _copy_rows(column, given.detach(), whole, index)


def _spans(target: Ragged, source: Ragged, ranges: Sequence[RowRange]) -> Spans:
    at, start, stop = torch.tensor([(each.at, each.start, each.stop) for each in ranges]).unbind(1)
    rows = target.offsets[at].tolist(), source.offsets[start].tolist(), source.offsets[stop].tolist()
    return list(zip(*rows, strict=True))


def _copy_rows(target: Tensor, source: Tensor, spans: Spans, index: Tensor | None = None) -> None:
    """Copies spans of rows; `index` holds all their rows where they go to neighbouring rows of the target."""
    _check_fit(target, source, spans)
    row = prod(source.shape[1:]) * source.element_size()
    largest = max(stop - start for _, start, stop in spans) * row
    if index is not None and row < INDEX_MAX_ROW_BYTES and target.is_cpu and source.is_cpu:
        first = spans[0][0]
        torch.index_select(source, 0, index, out=target[first : first + len(index)])
    elif use_memmove(largest) and is_plain(target) and is_plain(source):
        into, out = target.data_ptr(), source.data_ptr()
        for at, start, stop in spans:
            move(into + at * row, out + start * row, (stop - start) * row)
    else:
        for at, start, stop in spans:
            target[at : at + stop - start].copy_(source[start:stop])


def _check_fit(target: Tensor, source: Tensor, spans: Spans) -> None:
    """Raises `FrameError` if rows would be read or written outside of their tensors: another process may
    have laid the target out."""
    room, rows = target.shape[0], source.shape[0]
    outside = [
        span
        for span in spans
        if not (0 <= span[0] <= span[0] + span[2] - span[1] <= room and 0 <= span[1] <= span[2] <= rows)
    ]
    if outside or target.dtype != source.dtype or target.shape[1:] != source.shape[1:]:
        raise FrameError(
            f"no room for rows of {source.dtype} {list(source.shape[1:])} in {target.dtype} "
            f"{list(target.shape)}"
        )
