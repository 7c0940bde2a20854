"""Flat frames: the rows of a part as bytes behind a fixed header.

    "MSF2" | generation | digest | bytes of the table | alignment | table | rows of a column | rows ...

The headers of the step contain everything else: which rows of its batch a producer sends for the part, the
dtype and the row shape of each column, and the lengths of ragged rows. So nothing is decoded but the head.
A part can be flat if all of its columns are tensors or ragged tensors in host memory.

    in a message    a frame of at most `DataPlane.inline_max` bytes. Its columns are not aligned, because the
                    consumer copies them.
    in memory       a larger frame. Each column starts at a multiple of 64 bytes, so that a consumer with a
                    single producer reads the columns in place.
    shared          a large part of several producers, who write their rows into one frame (`shared_write`).

A consumer with several small frames copies their rows into one buffer, in sample order. It checks the lengths
in a frame before it uses the rows.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import msgpack
import numpy
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.routes.header import PlainColumn
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.buffers.memcpy import PIECE_BYTES, as_plain, move, use_memmove
from meshctl.topology.samples import Run

MAGIC = b"MSF2"
PACKED, ALIGNED = 1, 64
"""The alignments of columns in bytes, for frames in a message and for frames in memory."""
SMALL_MAX_BYTES = 1 << 15
"""The buffer of a received part below this size is compared with a copy after the call. The comparison finds
writes of the endpoint to the received memory."""
_HEAD = struct.Struct("<4sqIII")
HEAD_BYTES = _HEAD.size
_PACKER = msgpack.Packer()
Buffer = Any
"""A bytearray, or a numpy array of uint8."""


class FlatRows(NamedTuple):
    """The rows of a flat frame."""

    rows: memoryview
    alignment: int


class Message(NamedTuple):
    """A decoded frame of a route, flat or not."""

    generation: int
    digest: int
    table: Any = None
    """The headers of all producers; None if the frame has none."""
    batch: Any = None
    """A batch, or its `FlatRows` where the frame is flat."""
    memory: bytearray | None = None
    """The memory of the batch where the frame came as bytes and is not flat."""


Edges = Mapping[int | None, Sequence[int]]
"""The places of the runs of a part in a column: the first element of each run, and after them the number of
elements, counted along the first dim. The key None is for tensors; ragged columns have the index of their
lengths among the header's numbers."""


class _Placed(NamedTuple):
    """The place of a column in the buffer of all columns of a part."""

    column: PlainColumn
    at: int
    """Its first byte."""
    edges: Sequence[int]
    """The places of the runs in the column."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.edges[-1], *self.column.shape

    @property
    def elements(self) -> int:
        return self.edges[-1] * self.column.row_bytes // self.column.dtype.itemsize


class FlatPart:
    """The layout of the columns of some samples in one buffer. Steps with the same partition share it, unless
    a column is ragged."""

    def __init__(
        self,
        columns: Sequence[PlainColumn],
        runs: Sequence[Run],
        edges: Edges,
        alignment: int = ALIGNED,
        offsets: Mapping[int, Tensor] | None = None,
    ) -> None:
        """`offsets` are those of the ragged columns, by the index of their lengths. A layout without them has
        no columns to read."""
        self.columns, self.runs = columns, runs
        self._edges, self._offsets = edges, offsets or {}
        self._placed: list[_Placed] = []
        self._held: dict[tuple[int, int], FlatPart] = {}
        self._sources: dict[int, list[tuple[str, list[tuple[int, int, int]]]]] = {}
        self._moves: dict[tuple[int, int], tuple[int, list[tuple[slice, slice]]]] = {}
        self.nbytes = 0
        """Bytes of all columns, each at a multiple of `alignment`."""
        for column in columns:
            some = edges[column.lengths]
            self._placed.append(_Placed(column, self.nbytes, some))
            self.nbytes += -(-column.row_bytes * some[-1] // alignment) * alignment

    def held(self, producer: int, alignment: int) -> FlatPart:
        """Returns the layout of those samples that one producer holds, without those of the others."""
        found = self._held.get((producer, alignment))
        if found is None:
            found = self._held[producer, alignment] = self._find_held(producer, alignment)
        return found

    def _find_held(self, producer: int, alignment: int) -> FlatPart:
        for (other, _), alike in self._held.items():
            if other == producer:
                return FlatPart(self.columns, alike.runs, alike._edges, alignment)
        numbers = self._numbers(producer)
        edges = {
            index: [0, *accumulate([some[number + 1] - some[number] for number in numbers])]
            for index, some in self._edges.items()
        }
        return FlatPart(self.columns, [self.runs[number] for number in numbers], edges, alignment)

    def _numbers(self, producer: int) -> list[int]:
        """Returns the numbers of a producer's runs."""
        return [number for number, run in enumerate(self.runs) if run.producer == producer]

    @property
    def has_offsets(self) -> bool:
        """True if there are ragged columns. Their offsets are in no buffer."""
        return bool(self._offsets)

    def new_buffer(self) -> Buffer:
        """Returns a buffer for the columns: a bytearray for a small part, otherwise uninitialized memory."""
        return bytearray(self.nbytes) if self.nbytes < SMALL_MAX_BYTES else numpy.empty(self.nbytes, "B")

    @cached_property
    def _views(self) -> list[tuple[str, dict[str, Any], tuple[int, ...], int | None]]:
        """Name, arguments of `torch.frombuffer`, shape and index of the lengths of each column."""
        return [
            (
                each.column.name,
                {"dtype": each.column.dtype, "count": each.elements, "offset": each.at},
                each.shape,
                each.column.lengths,
            )
            for each in self._placed
        ]

    def columns_in(self, buffer: Buffer) -> dict[str, Column]:
        """Returns the columns as views of a buffer."""
        columns: dict[str, Column] = {}
        for name, place, shape, lengths in self._views:
            if place["count"]:
                values = torch.frombuffer(buffer, **place)
            else:
                values = torch.empty(0, dtype=place["dtype"])
            if len(shape) > 1:
                values = values.view(shape)
            columns[name] = values if lengths is None else Ragged(values, self._offsets[lengths])
        return columns

    def spans(self, batch: Batch, producer: int) -> Iterator[tuple[int, int, int]]:
        """Yields (place in the buffer, address, bytes) of the rows of a producer, whose batch it is. An
        address is valid until the iteration continues."""
        found = self._sources.get(producer)
        if found is None:
            found = self._sources[producer] = self._find_sources(batch, producer)
        columns: Mapping[str, Any] = batch.columns  # only tensors and ragged tensors
        for name, runs in found:
            column = columns[name]
            if type(column) is Ragged:
                column = column.values
            address = column.data_ptr()
            if not address or not column.is_contiguous() or column.is_neg() or column.is_conj():
                column = as_plain(column)
                address = column.data_ptr()
            for at, start, nbytes in runs:
                yield at, address + start, nbytes

    def _find_sources(self, batch: Batch, producer: int) -> list[tuple[str, list[tuple[int, int, int]]]]:
        """Returns the name of each column with the runs of a producer, whose batch it is: (place in the
        buffer, first byte in the column, bytes)."""
        numbers = self._numbers(producer)
        rows = [self.runs[number].start for number in numbers]
        starts: dict[int | None, list[int]] = {None: rows}
        found: list[tuple[str, list[tuple[int, int, int]]]] = []
        for (name, _, _, row, lengths), at, edges in self._placed:
            column = batch.columns[name]
            if isinstance(column, Ragged) and lengths not in starts:
                offsets = column.offsets.numpy()
                starts[lengths] = [int(offsets[start]) for start in rows]
            runs: list[tuple[int, int, int]] = []
            for number, start in zip(numbers, starts[lengths], strict=True):
                begin, end = edges[number], edges[number + 1]
                runs.append((at + begin * row, start * row, (end - begin) * row))
            found.append((name, runs))
        return found

    def copy(self, buffer: memoryview, producer: int, sent: FlatRows) -> bool:
        """Copies the rows that one producer sent to their places in a buffer. Returns False if they have
        another size than those that it holds."""
        rows, alignment = sent
        key = producer, alignment
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._find_moves(*key)
        nbytes, moves = found
        if len(rows) != nbytes:
            return False
        for into, sent_rows in moves:
            buffer[into] = rows[sent_rows]
        return True

    def _find_moves(self, producer: int, alignment: int) -> tuple[int, list[tuple[slice, slice]]]:
        """Returns the bytes that a producer sends, and where its rows go: the bytes in the buffer of all
        columns, and those in the rows that it sends."""
        numbers = self._numbers(producer)
        source = self.held(producer, alignment)
        found: list[tuple[int, int, int, int]] = []
        for (column, at, edges), given in zip(self._placed, source._placed, strict=True):
            row, start = column.row_bytes, given.at
            for number in numbers:
                begin, stop = at + edges[number] * row, at + edges[number + 1] * row
                end = start + stop - begin
                if found and (found[-1][1], found[-1][3]) == (begin, start):
                    begin, _, start, _ = found.pop()  # one copy of what is neighbouring on both sides
                found.append((begin, stop, start, end))
                start = end
        moves = [(slice(begin, stop), slice(start, end)) for begin, stop, start, end in found]
        return source.nbytes, moves


def head(generation: int, digest: int, table: Sequence[bytes] | None, alignment: int) -> bytes:
    """Returns the beginning of a frame, before its rows. `table` has the headers of all producers; it is None
    unless this rank leads the part."""
    packed = b"" if table is None else _PACKER.pack(table)
    found = _HEAD.pack(MAGIC, generation, digest, len(packed), alignment) + packed
    return found.ljust(_rows_start(len(packed), alignment), b"\0")


def encode(head: bytes, layout: FlatPart, batch: Batch, producer: int) -> bytes:
    """Returns the frame of a producer's rows, whose batch it is. The alignment of `layout` is `PACKED`."""
    rows = [ctypes.string_at(address, nbytes) for _, address, nbytes in layout.spans(batch, producer)]
    return b"".join([head, *rows])


def write(into: Tensor, start: int, layout: FlatPart, batch: Batch, producer: int) -> int:
    """Writes the rows of one producer, which are in its `batch`, into a frame: `into` is its memory, uint8
    `[n]`, where the rows of all producers begin at `start`. Returns the number of bytes written."""
    memory, written = into.data_ptr() + start, 0
    for at, address, nbytes in layout.spans(batch, producer):
        if nbytes <= PIECE_BYTES:
            ctypes.memmove(memory + at, address, nbytes)
        elif use_memmove(nbytes):
            move(memory + at, address, nbytes)
        else:
            source = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
            into[start + at : start + at + nbytes].copy_(source)
        written += nbytes
    return written


def write_head(into: Tensor, head: bytes) -> None:
    """Writes the beginning of a frame into memory, uint8 `[n]`."""
    ctypes.memmove(into.data_ptr(), head, len(head))


def decode(frame: Tensor | bytes) -> Message | None:
    """Returns a decoded flat frame; None for a frame of another kind. Raises `FrameError` for a malformed
    one."""
    content: Any = frame if isinstance(frame, bytes) else frame.numpy()
    view = memoryview(content)
    if len(view) < HEAD_BYTES:
        if view[: len(MAGIC)] == MAGIC:
            raise FrameError(f"a flat frame of {len(view)} bytes")
        return None
    magic, generation, digest, length, alignment = _HEAD.unpack_from(view)
    if magic != MAGIC:
        return None
    if alignment != PACKED and alignment != ALIGNED:
        raise FrameError(f"a flat frame whose columns start at multiples of {alignment}")
    start = _rows_start(length, alignment)
    if start > len(view):
        raise FrameError(f"a table of {length} bytes in a flat frame of {len(view)}")
    try:
        table = msgpack.unpackb(view[HEAD_BYTES : HEAD_BYTES + length]) if length else None
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(f"a malformed table: {error}") from None
    return Message(generation, digest, table, FlatRows(view[start:], alignment))


def _rows_start(table_bytes: int, alignment: int) -> int:
    """Returns the place of the rows in a frame."""
    return -(-(HEAD_BYTES + table_bytes) // alignment) * alignment
