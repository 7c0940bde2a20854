"""Rows of a batch on their way into a frame: laid out first, then copied once, from where they are to where
they will be read.

Several speakers may fill one frame: all know from the table how many rows each of them has, so one of them
lays it out and each writes its own rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.transports.buffers.frames import FrameError, on_device
from meshctl.runtime.transports.buffers.memcpy import by_libc, is_plain
from meshctl.topology.samples import Run

SMALL = 1 << 10
"""Bytes of a row below which many of them are picked by an index."""
Spans = list[tuple[int, int, int]]
"""Place in the target, the source's first row, and the one after its last."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one batch, and their place in another."""

    at: int
    start: int
    stop: int


def pieces_of(part: Sequence[Run], speaker: int) -> list[Piece]:
    """What a speaker has of a part."""
    found, at = [], 0
    for run in part:
        if run.producer == speaker:
            found.append(Piece(at, run.start, run.stop))
        at += len(run)
    return found


def packed(pieces: Sequence[Piece]) -> list[Piece]:
    """The same rows one after another."""
    found, at = [], 0
    for piece in pieces:
        found.append(Piece(at, piece.start, piece.stop))
        at += piece.stop - piece.start
    return found


def row_index(spans: Sequence[tuple[int, int]]) -> Tensor:
    """int64 `[n]`: all numbers of some spans [start, stop), one span after another."""
    starts, stops = torch.tensor(spans).unbind(1)
    counts = stops - starts
    ends = counts.cumsum(0)
    shifts: Tensor = (starts - ends + counts).repeat_interleave(counts)
    return torch.arange(int(ends[-1])) + shifts


def kind_of(column: Column) -> str:
    """`tensor` and `ragged` are laid out by whoever knows their dtype and the shape of a row; a `list` is
    not, and what lies on a `device` gets from there to another by a way of its own."""
    if isinstance(column, list):
        return "list"
    values = column.values if isinstance(column, Ragged) else column
    return "device" if on_device(values) else "tensor" if values is column else "ragged"


def schema_of(batch: Batch) -> dict[str, list[Any]]:
    """As plain data: what another process must know to lay the batch's columns out, as far as they can be."""
    said: dict[str, list[Any]] = {}
    for name, column in batch.columns.items():
        if (kind := kind_of(column)) in ("tensor", "ragged"):
            values: Any = column.values if isinstance(column, Ragged) else column
            said[name] = [kind, str(values.dtype), list(values.shape[1:])]
    return said


def dtype_of(name: str) -> torch.dtype:
    """`torch.float32`, as a schema says it. Raises `FrameError` for what is none."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise FrameError(f"a column of the unknown dtype {name}")
    return found


def lengths_of(batch: Batch) -> dict[str, Tensor]:
    """Of the ragged columns that are laid out."""
    return {
        name: column.lengths
        for name, column in batch.columns.items()
        if isinstance(column, Ragged) and kind_of(column) == "ragged"
    }


def room(
    schema: Mapping[str, Sequence[Any]],
    rows: int,
    lengths: Mapping[str, Tensor],
    ids: Tensor,
    group_depth: int,
) -> Batch:
    """A batch of `rows` samples whose columns are room to be filled (tensors on `meta`); offsets and ids are
    there. Columns of the same lengths, the tensor itself, share their offsets."""
    columns: dict[str, Column] = {}
    known: dict[int, Tensor] = {}
    for name, (kind, dtype, shape) in schema.items():
        of = dtype_of(dtype)
        if kind == "ragged":
            offsets = known.get(id(lengths[name]))
            if offsets is None:
                offsets = known[id(lengths[name])] = torch.cat(
                    [torch.zeros(1, dtype=torch.int64), lengths[name].cumsum(0)]
                )
            columns[name] = Ragged(torch.empty([int(offsets[-1]), *shape], dtype=of, device="meta"), offsets)
        else:
            columns[name] = torch.empty([rows, *shape], dtype=of, device="meta")
    return Batch(columns, ids=ids, group_depth=group_depth)


def picked(batch: Batch, pieces: Sequence[Piece]) -> Batch:
    """Rows of a batch as room for them, with what is not laid out in it already."""
    if len(pieces) < 2:  # views: the frame copies them once
        return batch.between(pieces[0].start, pieces[0].stop) if pieces else batch.between(0, 0)
    schema = schema_of(batch)
    lengths = {
        name: torch.cat([column[piece.start : piece.stop] for piece in pieces])
        for name, column in lengths_of(batch).items()
    }
    ids = torch.cat([batch.ids[piece.start : piece.stop] for piece in pieces])
    made = room(schema, len(ids), lengths, ids, batch.group_depth)
    columns = made.columns
    if len(schema) < len(batch.columns):
        others = Batch(
            {name: column for name, column in batch.columns.items() if name not in schema}, ids=batch.ids
        ).take(row_index([(piece.start, piece.stop) for piece in pieces]).tolist())
        columns = {name: made.columns.get(name, others.columns.get(name, [])) for name in batch.columns}
    return Batch(columns, ids=ids, group_depth=batch.group_depth, most=batch.most)


def fill(target: Batch, source: Batch, pieces: Sequence[Piece]) -> None:
    """Copies rows of one batch to their places in another, column by column. Raises `FrameError` where the
    target has no such places."""
    if not pieces:
        return
    index: Tensor | None = None
    if any(isinstance(column, Tensor) for column in target.columns.values()) and _fill_a_gap(pieces):
        index = row_index([(piece.start, piece.stop) for piece in pieces])
    whole = [(piece.at, piece.start, piece.stop) for piece in pieces]
    spans: dict[tuple[int, int], Spans] = {}
    for name, column in target.columns.items():
        given = source[name]
        if kind_of(given) == "device":
            continue
        if isinstance(column, Ragged):
            alike = id(column.offsets), id(given.offsets)
            if alike not in spans:
                spans[alike] = _spans(column, given, pieces)
            _copy_rows(column.values, given.values.detach(), spans[alike])
        elif isinstance(column, Tensor):
            _copy_rows(column, given.detach(), whole, index)


def _spans(target: Ragged, source: Ragged, pieces: Sequence[Piece]) -> Spans:
    at, start, stop = torch.tensor([(piece.at, piece.start, piece.stop) for piece in pieces]).unbind(1)
    places = target.offsets[at].tolist(), source.offsets[start].tolist(), source.offsets[stop].tolist()
    return list(zip(*places, strict=True))


def _copy_rows(target: Tensor, source: Tensor, spans: Spans, index: Tensor | None = None) -> None:
    """`index` are all rows of the spans, where they go to neighbouring places."""
    fits = all(
        0 <= at <= at + stop - start <= len(target) and 0 <= start <= stop <= len(source)
        for at, start, stop in spans
    )
    if target.dtype != source.dtype or target.shape[1:] != source.shape[1:] or not fits:
        raise FrameError(
            f"no room for rows of {source.dtype} {list(source.shape[1:])} in {target.dtype} {list(target.shape)}"
        )
    row = prod(source.shape[1:]) * source.element_size()
    if index is not None and row < SMALL and target.is_cpu and source.is_cpu:
        torch.index_select(source, 0, index, out=target[spans[0][0] : spans[0][0] + len(index)])
    elif (
        is_plain(target) and is_plain(source) and by_libc(max(stop - start for _, start, stop in spans) * row)
    ):
        into, out = target.data_ptr(), source.data_ptr()
        for at, start, stop in spans:
            ctypes.memmove(into + at * row, out + start * row, (stop - start) * row)
    else:
        for at, start, stop in spans:
            target[at : at + stop - start].copy_(source[start:stop])


def _fill_a_gap(pieces: Sequence[Piece]) -> bool:
    """Whether several pieces go to neighbouring places."""
    return len(pieces) > 1 and all(
        one.at + one.stop - one.start == other.at for one, other in pairwise(pieces)
    )
