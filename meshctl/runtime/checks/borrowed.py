"""Finds endpoints that write into the batches that they receive.

A received batch is borrowed: others may read the same memory. Large columns are in read-only pages, where a
write ends the process. After each call, these checks find writes into all other columns:

    buffers     the memory of a small batch is compared with a copy, which finds writes by any means
    tensors     torch counts the writes into a tensor and into its views; for writes by other means, such as
                numpy, the bytes of a tensor of up to 512 KiB are compared with a copy, and samples of the
                bytes of a larger one
    lists       a list must contain the same objects as before
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.inputs import Arguments
from meshctl.runtime.transports.buffers.memcpy import is_plain

NO_VERSION = -1
"""The version of a tensor that was made in inference mode, where torch does not count."""
COPY_MAX_BYTES = 1 << 19
"""Maximum size of a tensor whose bytes are all compared. A copy of this size takes about 15 microseconds."""
SAMPLES, SAMPLE_BYTES = 64, 64
"""The number of samples of a larger tensor, the first and the last bytes among them, and the size of each."""

IsReadOnly = Callable[[Tensor], bool]
"""Returns whether a tensor is in memory of another process that this process cannot write."""


def never(tensor: Tensor) -> bool:
    return False


class Borrowed:
    """The batches among the arguments of a call, as they were before it."""

    def __init__(self, endpoint: str, is_read_only: IsReadOnly = never) -> None:
        """`endpoint` is COMPONENT.METHOD."""
        self._endpoint, self._is_read_only = endpoint, is_read_only
        self._buffers: list[bytes] = []
        """Copies of the buffers of small batches."""
        self._tensors: list[Tensor] = []
        """The tensors that are in no such buffer."""
        self._versions: list[int] = []
        self._bytes: list[list[bytes]] = []
        """The bytes of each tensor, or samples of them."""
        self._lists: list[tuple[list[Any], list[Any]]] = []
        """The lists, each with a copy."""
        self._changed_by_producer = ""
        """A column in read-only memory that has changed, if there is one."""

    def begin(self, arguments: Arguments) -> None:
        """Keeps the state of the arguments before a call."""
        self._buffers = [bytes(buffer) for buffer in arguments.buffers]
        if not arguments.unbuffered:
            return
        for _, part in _parts(arguments.unbuffered):
            if isinstance(part, Tensor):
                self._tensors.append(part)
            else:
                self._lists.append((part, part.copy()))
        self._versions = _versions(self._tensors)
        self._bytes = [_bytes_of(tensor) for tensor in self._tensors]

    def end(self, arguments: Arguments) -> None:
        """Raises `StageError` if a column was written during the call."""
        if name := self._written(arguments):
            raise StageError(
                f"`{self._endpoint}` wrote into column `{name}`, which is borrowed: clone() it before you "
                "change it"
            )
        if name := self._changed_by_producer:
            raise StageError(
                f"the producer of column `{name}` wrote into it while `{self._endpoint}` read it: memory "
                "that an endpoint has returned belongs to its consumers"
            )

    def _written(self, arguments: Arguments) -> str:
        if arguments.buffers != self._buffers:
            return _written_in(arguments.buffers, self._buffers, arguments.batches)
        if not arguments.unbuffered:
            return ""
        tensors, versions, lists, kept = self._tensors, self._versions, self._lists, self._bytes
        self._tensors, self._lists, self._bytes = [], [], []
        if _versions(tensors) != versions:
            for tensor, version in zip(tensors, versions, strict=True):
                if _version(tensor) != version:
                    return _name_of(tensor, arguments.batches)
        for tensor, before in zip(tensors, kept, strict=True):
            if _bytes_of(tensor) != before:
                name = _name_of(tensor, arguments.batches)
                if not self._is_read_only(tensor):
                    return name
                self._changed_by_producer = name
        for rows, copy in lists:
            if len(rows) != len(copy) or not all(map(is_, rows, copy)):
                return _name_of(rows, arguments.batches)
        return ""


def _written_in(buffers: Sequence[bytearray], copies: Sequence[bytes], batches: Sequence[Batch]) -> str:
    """Returns the name of a column whose bytes in a buffer differ from those in its copy."""
    tensors = [(name, part) for name, part in _parts(batches) if isinstance(part, Tensor) and part.is_cpu]
    for buffer, copy in zip(buffers, copies, strict=True):
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        for name, tensor in tensors:
            at = tensor.data_ptr() - start
            stop = at + tensor.nbytes
            if 0 <= at < stop <= len(copy) and buffer[at:stop] != copy[at:stop]:
                return name
    return ""


def _name_of(part: Tensor | list[Any], batches: Sequence[Batch]) -> str:
    """Returns the name of the column that a tensor or a list is of."""
    return next(name for name, one in _parts(batches) if one is part)


def _parts(batches: Sequence[Batch]) -> Iterator[tuple[str, Tensor | list[Any]]]:
    """Yields the tensors and lists that batches consist of, each with the name of its column."""
    for batch in batches:
        for name, column in batch.columns.items():
            if isinstance(column, Ragged):
                yield name, column.values
                yield name, column.offsets
            else:
                yield name, column


def _bytes_of(tensor: Tensor) -> list[bytes]:
    """Returns the bytes of a small tensor in host memory, samples of those of a larger one, and nothing for
    any other tensor."""
    if not is_plain(tensor):
        return []
    address, nbytes = tensor.data_ptr(), tensor.nbytes
    if nbytes <= COPY_MAX_BYTES:
        return [ctypes.string_at(address, nbytes)]
    last = nbytes - SAMPLE_BYTES
    starts = [address + last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [ctypes.string_at(start, SAMPLE_BYTES) for start in starts]


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [_version(tensor) for tensor in tensors]


def _version(tensor: Tensor) -> int:
    return NO_VERSION if tensor.is_inference() else tensor._version
