"""Flat frames: the rows of a part as bytes behind a fixed header.

    "MSF2" | generation | digest | bytes of the table | alignment | table | rows of a column | rows ...

The headers of the step contain everything else: which rows of its batch a producer sends for the part, and
the dtype and the row shape of each column. A producer sends a flat frame if all columns are tensors in host
memory and the part is not large.

    in a message    a frame of at most `DataPlane.inline_max` bytes. Its columns are not aligned, because the
                    consumer copies them.
    in memory       a larger frame. Each column starts at a multiple of 64 bytes, so that a consumer with a
                    single producer reads the columns in place.

A consumer with several producers copies their rows into one buffer, in sample order. It checks the lengths in
a frame before it uses the rows.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.header import PlainColumn
from meshctl.runtime.routes.rows import RowRange
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.buffers.memcpy import as_plain

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


class FlatMessage(NamedTuple):
    """A decoded flat frame."""

    generation: int
    digest: int
    table: Any
    """The headers of all producers; None if the frame has none."""
    rows: FlatRows


@dataclass(frozen=True)
class _Placed:
    """The place of a column in the buffer of all columns of a part."""

    column: PlainColumn
    at: int
    """The first byte of its rows."""
    shape: tuple[int, ...]
    """The shape of the whole column."""
    elements: int
    """The number of its elements."""


class FlatPart:
    """The layout of the columns of some samples in one buffer. All steps with the same partition share it."""

    def __init__(self, columns: Sequence[PlainColumn], count: int, alignment: int = ALIGNED) -> None:
        self.columns = columns
        self._placed: list[_Placed] = []
        self.nbytes = 0
        """Bytes of all columns, each at a multiple of `alignment`."""
        for column in columns:
            nbytes = column.row_bytes * count
            shape = (count, *column.shape)
            self._placed.append(_Placed(column, self.nbytes, shape, nbytes // column.dtype.itemsize))
            self.nbytes += -(-nbytes // alignment) * alignment

    def new_buffer(self) -> Buffer:
        """Returns a buffer for the columns: a bytearray for a small part, otherwise uninitialized memory."""
        return bytearray(self.nbytes) if self.nbytes < SMALL_MAX_BYTES else numpy.empty(self.nbytes, "B")

    def columns_in(self, buffer: Buffer) -> dict[str, Tensor]:
        """Returns the columns as views of a buffer."""
        columns: dict[str, Tensor] = {}
        for placed in self._placed:
            dtype, shape, count = placed.column.dtype, placed.shape, placed.elements
            if count:
                column = torch.frombuffer(buffer, dtype=dtype, count=count, offset=placed.at)
            else:
                column = torch.empty(0, dtype=dtype)
            columns[placed.column.name] = column if len(shape) == 1 else column.view(shape)
        return columns

    def spans(self, batch: Batch, ranges: Sequence[RowRange]) -> Iterator[tuple[int, int, int]]:
        """Yields (place in the buffer, address, bytes) of the rows `ranges` of a batch. An address is valid
        until the iteration continues."""
        for placed in self._placed:
            tensor, row, at = batch.columns[placed.column.name], placed.column.row_bytes, placed.at
            assert isinstance(tensor, Tensor)
            address = tensor.data_ptr()
            if not address or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
                tensor = as_plain(tensor)
                address = tensor.data_ptr()
            for each in ranges:
                nbytes = (each.stop - each.start) * row
                yield at, address + each.start * row, nbytes
                at += nbytes

    def copy(
        self, buffer: memoryview, ranges: Sequence[RowRange], source: FlatPart, rows: memoryview
    ) -> bool:
        """Copies the rows that one producer sent, which are placed as in `source`, to their places in a
        buffer. Returns False if `rows` has another size than `source`."""
        if len(rows) != source.nbytes:
            return False
        for placed, sent in zip(self._placed, source._placed, strict=True):
            row, start = placed.column.row_bytes, sent.at
            for each in ranges:
                nbytes, at = (each.stop - each.start) * row, placed.at + each.at * row
                buffer[at : at + nbytes] = rows[start : start + nbytes]
                start += nbytes
        return True


def head(generation: int, digest: int, table: Sequence[bytes] | None, alignment: int) -> bytes:
    """Returns the beginning of a frame, before its rows. `table` has the headers of all producers; it is None
    unless this rank leads the part."""
    packed = b"" if table is None else _PACKER.pack(table)
    found = _HEAD.pack(MAGIC, generation, digest, len(packed), alignment) + packed
    return found.ljust(_rows_start(len(packed), alignment), b"\0")


def encode(head: bytes, layout: FlatPart, batch: Batch, ranges: Sequence[RowRange]) -> bytes:
    """Returns the frame of the rows `ranges` of a batch. The alignment of `layout` is `PACKED`."""
    rows = [ctypes.string_at(address, nbytes) for _, address, nbytes in layout.spans(batch, ranges)]
    return b"".join([head, *rows])


def write(into: Tensor, head: bytes, layout: FlatPart, batch: Batch, ranges: Sequence[RowRange]) -> None:
    """Writes the frame of the rows `ranges` of a batch into memory, uint8 `[n]`."""
    memory = into.data_ptr()
    ctypes.memmove(memory, head, len(head))
    for at, address, nbytes in layout.spans(batch, ranges):
        ctypes.memmove(memory + len(head) + at, address, nbytes)


def decode(frame: Tensor | bytes) -> FlatMessage | None:
    """Returns a decoded flat frame, or None for a frame of another kind. Raises `FrameError` for a malformed
    one."""
    content: Any = frame.numpy() if isinstance(frame, Tensor) else frame
    view = memoryview(content)
    if view[: len(MAGIC)] != MAGIC:
        return None
    if len(view) < HEAD_BYTES:
        raise FrameError(f"a flat frame of {len(view)} bytes")
    _, generation, digest, length, alignment = _HEAD.unpack_from(view)
    if alignment not in (PACKED, ALIGNED):
        raise FrameError(f"a flat frame whose columns start at multiples of {alignment}")
    start = _rows_start(length, alignment)
    if start > len(view):
        raise FrameError(f"a table of {length} bytes in a flat frame of {len(view)}")
    try:
        table = msgpack.unpackb(view[HEAD_BYTES : HEAD_BYTES + length]) if length else None
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(f"a malformed table: {error}") from None
    return FlatMessage(generation, digest, table, FlatRows(view[start:], alignment))


def _rows_start(table_bytes: int, alignment: int) -> int:
    """Returns the place of the rows in a frame."""
    return -(-(HEAD_BYTES + table_bytes) // alignment) * alignment
