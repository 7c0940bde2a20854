"""A value as bytes: plain data and tensors in one flat buffer, and back. Never pickle.

    "MSH2" | length of the header | header: msgpack | tensor | tensor | ...        each tensor at a multiple of 64 bytes

A `Frame` is laid out first, and then written where it will be read: each tensor is copied once. A tensor on torch's `meta` device is room
that is left for others to fill; one that is read where it lies already, or that travels by a way of its own, stays beside the frame, whose
header says which it is. `unpack` gives views. A frame is input: every offset, shape and dtype in it is checked before a view is
made, and how deep values may lie in one another is bounded.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from math import prod
from reprlib import repr as short
from typing import Any

import msgpack
import torch
from torch import Tensor

from meshctl.runtime.batch import Batch, BatchError, Ragged

MAGIC = b"MSH2"
ALIGN = 64
MOST_BESIDE = 1 << 12
"""Tensors beside one frame; any more lie in it."""
_PREFIX = struct.Struct("<4sI")
_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
"""In an order that never changes: a header says the number."""
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
_TENSOR, _RAGGED, _BATCH, _TUPLE, _LONG, _BESIDE = range(1, 7)
"""msgpack's extension types."""
_DEPTH = 100
"""How deep extension types may lie in one another; each level is copied once more on its way."""
_DIMS = 64
"""Of a tensor: as many as torch's own operations take."""


class FrameError(ValueError):
    """A value that cannot be sent, or bytes that are no frame."""


class Frame:
    """A value laid out: how many bytes it takes, and what goes where. Raises `FrameError` for anything but plain data, tensors,
    `Ragged` and `Batch`."""

    def __init__(self, value: Any, beside: Callable[[Tensor], bool] = lambda tensor: False) -> None:
        """`beside` says which tensors are not copied into it."""
        self.beside: list[Tensor] = []
        """They travel with the frame, in this order."""
        self._stays = beside
        self._tensors: list[tuple[Tensor, int]] = []
        self._size = self._depth = 0
        header = self._packed(value)
        self._head = _PREFIX.pack(MAGIC, len(header)) + header
        self._start = _aligned(len(self._head))
        self.nbytes = self._start + self._size

    @property
    def moved(self) -> int:
        """Bytes, with those that stay beside it."""
        return self.nbytes + sum(tensor.nbytes for tensor in self.beside)

    def write(self, into: Tensor) -> Tensor:
        """Fills uint8 `[nbytes]` and returns it; room stays as it is."""
        into[: len(self._head)] = torch.frombuffer(bytearray(self._head), dtype=torch.uint8)
        for tensor, at in self._tensors:
            if tensor.nbytes and not tensor.is_meta:
                begin = self._start + at
                into[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return into

    def _packed(self, value: Any) -> bytes:
        self._depth += 1
        if self._depth > _DEPTH:
            raise FrameError(f"a value that cannot be sent: more than {_DEPTH} tuples lie in one another")
        try:
            data: bytes = msgpack.packb(value, default=self._said, strict_types=True)
        except FrameError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            raise FrameError(f"a value that cannot be sent: {error}") from None
        self._depth -= 1
        return data

    def _said(self, value: Any) -> Any:
        """What msgpack does not know."""
        match value:
            case Tensor():
                tensor = value.detach()
                self._check(tensor)
                beside = len(self.beside) < MOST_BESIDE and self._stays(tensor)
                kind, place = (_BESIDE, self._left) if beside else (_TENSOR, self._placed)
                return msgpack.ExtType(kind, self._packed(place(tensor)))
            case Ragged():
                return msgpack.ExtType(_RAGGED, self._packed([value.values, value.offsets]))
            case Batch():
                return msgpack.ExtType(_BATCH, self._packed([dict(value.columns), value.ids, value.group_depth, value.most]))
            case tuple():
                return msgpack.ExtType(_TUPLE, self._packed(list(value)))
            case int() if value.bit_length() > 63:
                return msgpack.ExtType(_LONG, int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
            case str() | int() | float() | list() | dict():  # a class of the user's, derived from plain data
                plain: Any = next(kind for kind in (str, int, float, list, dict) if isinstance(value, kind))
                return plain(value)
        raise FrameError(f"a {type(value).__name__} cannot be sent: say it in plain data (numbers, text, lists, dicts) and tensors")

    def _left(self, tensor: Tensor) -> list[Any]:
        """`[dtype, number, shape ...]` of one that stays beside the frame."""
        self.beside.append(tensor)
        return [_NUMBERS[tensor.dtype], len(self.beside) - 1, *tensor.shape]

    def _placed(self, tensor: Tensor) -> list[Any]:
        """`[dtype, offset, shape ...]`."""
        at, self._size = self._size, self._size + _aligned(tensor.nbytes)
        self._tensors.append((tensor, at))
        return [_NUMBERS[tensor.dtype], at, *tensor.shape]

    @staticmethod
    def _check(tensor: Tensor) -> None:
        if tensor.dtype not in _NUMBERS or tensor.layout is not torch.strided:
            kind = str(tensor.dtype if tensor.dtype not in _NUMBERS else tensor.layout).removeprefix("torch.")
            raise FrameError(f"a tensor of {kind} cannot be sent")
        if tensor.ndim > _DIMS:
            raise FrameError(f"a tensor of {tensor.ndim} dims cannot be sent")


def pack(value: Any) -> Tensor:
    """The frame of a value, uint8 `[n]`, in memory of its own."""
    frame = Frame(value)
    return frame.write(torch.empty(frame.nbytes, dtype=torch.uint8))


def unpack(frame: Tensor, beside: Sequence[Tensor] = ()) -> Any:
    """The value of a frame, uint8 `[n]`, its tensors as views of it and of what came beside it, each uint8 `[n]` too. Raises `FrameError`
    for anything malformed."""
    if frame.numel() < _PREFIX.size:
        raise FrameError(f"a frame of {frame.numel()} bytes")
    magic, length = _PREFIX.unpack(bytes_of(frame[: _PREFIX.size]))
    if magic != MAGIC or _PREFIX.size + length > frame.numel():
        raise FrameError("these bytes are no frame")
    return _Reader(frame, _aligned(_PREFIX.size + length), beside).value(bytes_of(frame[_PREFIX.size : _PREFIX.size + length]))


class _Reader:
    def __init__(self, frame: Tensor, start: int, beside: Sequence[Tensor]) -> None:
        self._frame, self._start, self._beside, self._depth = frame, start, beside, 0

    def value(self, header: bytes) -> Any:
        self._depth += 1
        if self._depth > _DEPTH:
            raise FrameError(f"a malformed header: more than {_DEPTH} values lie in one another")
        try:
            value = msgpack.unpackb(header, ext_hook=self._heard, strict_map_key=False)
        except FrameError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, BatchError, msgpack.UnpackException) as error:
            raise FrameError(f"a malformed header: {short(str(error))}") from None
        self._depth -= 1
        return value

    def _heard(self, kind: int, data: bytes) -> Any:
        if kind == _LONG:
            return int.from_bytes(data, "big", signed=True)
        inner = self.value(data)
        if kind == _TENSOR:
            return self._view(*inner)
        if kind == _BESIDE:
            return self._seen(*inner)
        if kind == _RAGGED:
            return ragged(*inner)
        if kind == _TUPLE:
            return tuple(inner)
        if kind == _BATCH:
            return _batch(*inner)
        raise FrameError(f"an unknown kind {kind}")

    def _view(self, kind: int, at: int, *shape: int) -> Tensor:
        dtype, nbytes = self._checked(kind, at, shape)
        begin = self._start + at
        if at % ALIGN or begin + nbytes > max(self._frame.shape[0], self._start):
            raise FrameError(f"a tensor of {nbytes} bytes at {at} in a frame of {len(self._frame)}")
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        return self._frame[begin : begin + nbytes].view(dtype).view(shape)

    def _seen(self, kind: int, number: int, *shape: int) -> Tensor:
        dtype, nbytes = self._checked(kind, number, shape)
        if number >= len(self._beside) or self._beside[number].nbytes != nbytes:
            raise FrameError(f"a tensor of {nbytes} bytes beside the frame, as number {number}, where {len(self._beside)} came")
        return self._beside[number].view(dtype).view(shape)

    @staticmethod
    def _checked(kind: int, at: int, shape: Sequence[int]) -> tuple[torch.dtype, int]:
        """The dtype, and how many bytes that is."""
        if len(shape) > _DIMS or any(type(number) is not int or not 0 <= number < 1 << 63 for number in (kind, at, *shape)):
            raise FrameError(f"a tensor of shape {short(shape)} and kind {short(kind)} at {short(at)}")
        if kind >= len(_DTYPES):
            raise FrameError(f"a tensor of the unknown kind {kind}")
        dtype = _DTYPES[kind]
        if prod(max(1, size) for size in shape) * dtype.itemsize >= 1 << 63:  # also where it has no elements: torch counts its strides
            raise FrameError(f"a tensor of shape {shape}")
        return dtype, prod(shape) * dtype.itemsize


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor; torch alone has no way that needs no numpy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _batch(columns: dict[str, Any], ids: Tensor, group_depth: int, most: int | None) -> Batch:
    if not all(type(name) is str and isinstance(column, (Tensor, Ragged, list)) for name, column in columns.items()):
        raise FrameError("a batch whose columns are none")
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 2:
        raise FrameError("a batch whose ids are no numbers")
    if type(group_depth) is not int or not 0 <= group_depth <= ids.shape[1] or not (most is None or (type(most) is int and most >= 0)):
        raise FrameError(f"a batch of group depth {short(group_depth)}, the most {short(most)}")
    return Batch(columns, ids=ids, group_depth=group_depth, most=most)


def ragged(values: Tensor, offsets: Tensor) -> Ragged:
    """Of a column's parts, which are input. Raises `FrameError` where they do not fit."""
    if not isinstance(values, Tensor) or not isinstance(offsets, Tensor) or offsets.ndim != 1 or not len(offsets):
        raise FrameError("a ragged column that is none")
    if offsets.dtype != torch.int64 or not values.ndim:
        raise FrameError("a ragged column whose offsets are no numbers")
    if offsets[0] != 0 or offsets[-1] != len(values) or bool((offsets.diff() < 0).any()):
        raise FrameError("a ragged column whose offsets do not fit its values")
    return Ragged(values, offsets)
