"""Flat frames: the rows of a small part as bytes behind a fixed header.

    "MSF1" | generation | digest | bytes of the table | table | rows of a column | rows of a column | ...

The headers of the step say everything else: which rows of its batch a producer sends for the part, and the
dtype and the row shape of each column. A producer sends a flat frame where all columns are tensors in host
memory, the whole part is small, and the frame fits into a message (`DataPlane.inline_max`). A consumer copies
the rows of all producers of its part into one buffer, in sample order. The lengths in a frame are checked
before its rows are copied.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.header import PlainColumn
from meshctl.runtime.routes.rows import RowRange
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.buffers.memcpy import as_plain

MAGIC = b"MSF1"
_HEAD = struct.Struct("<4sqII")
HEAD_BYTES = _HEAD.size
_PACKER = msgpack.Packer()
_ALIGN = 64


def encode(
    generation: int,
    digest: int,
    table: Sequence[bytes] | None,
    batch: Batch,
    columns: Iterable[PlainColumn],
    ranges: Sequence[RowRange],
) -> bytes:
    """Returns the frame of the rows `ranges` of a batch. `table` has the headers of all producers; it is None
    unless this rank leads the part."""
    packed = b"" if table is None else _PACKER.pack(table)
    pieces = [_HEAD.pack(MAGIC, generation, digest, len(packed)), packed]
    for column in columns:
        tensor = batch.columns[column.name]
        assert isinstance(tensor, Tensor)
        address, row = tensor.data_ptr(), column.row_bytes
        if not address or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = as_plain(tensor)
            address = tensor.data_ptr()
        for each in ranges:
            pieces.append(ctypes.string_at(address + each.start * row, (each.stop - each.start) * row))
    return b"".join(pieces)


def decode(frame: bytes) -> tuple[int, int, Any, memoryview]:
    """Returns the generation, the digest, the table (None if there is none) and the rows of a flat frame.
    Raises `FrameError`."""
    if len(frame) < HEAD_BYTES:
        raise FrameError(f"a flat frame of {len(frame)} bytes")
    _, generation, digest, length = _HEAD.unpack_from(frame)
    start = HEAD_BYTES + length
    if start > len(frame):
        raise FrameError(f"a table of {length} bytes in a flat frame of {len(frame)}")
    try:
        table = msgpack.unpackb(frame[HEAD_BYTES:start]) if length else None
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(f"a malformed table: {error}") from None
    return generation, digest, table, memoryview(frame)[start:]


@dataclass(frozen=True)
class _Placed:
    """A column of a part in the buffer of all its columns."""

    column: PlainColumn
    at: int
    """The first byte of its rows."""
    shape: tuple[int, ...]
    """The shape of the whole column."""
    elements: int
    """The number of its elements."""


class FlatPart:
    """The columns of a part in one buffer. They are the same in all steps of a partition."""

    def __init__(self, columns: Sequence[PlainColumn], count: int) -> None:
        self.columns = columns
        self.row_bytes = sum(column.row_bytes for column in columns)
        """Bytes of one sample."""
        self._placed: list[_Placed] = []
        self.nbytes = 0
        """Bytes of all columns, each at a multiple of 64."""
        for column in columns:
            nbytes = column.row_bytes * count
            shape = (count, *column.shape)
            self._placed.append(_Placed(column, self.nbytes, shape, nbytes // column.dtype.itemsize))
            self.nbytes += -(-nbytes // _ALIGN) * _ALIGN

    def columns_in(self, buffer: bytearray) -> dict[str, Tensor]:
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

    def copy(self, buffer: bytearray, ranges: Sequence[RowRange], rows: memoryview) -> bool:
        """Copies the rows that one producer sent to their places in a buffer of `nbytes`. Returns False if
        their bytes are not those of so many rows."""
        if len(rows) != sum([each.stop - each.start for each in ranges]) * self.row_bytes:
            return False
        start = 0
        for placed in self._placed:
            row = placed.column.row_bytes
            for each in ranges:
                nbytes, at = (each.stop - each.start) * row, placed.at + each.at * row
                buffer[at : at + nbytes] = rows[start : start + nbytes]
                start += nbytes
        return True
