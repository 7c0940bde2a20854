"""A value as bytes: plain data and tensors in one flat buffer, and back. Never pickle.

    "MSH1" | length of the header | header: JSON | tensor | tensor | ...        each tensor at a multiple of 64 bytes

`pack` copies each tensor once, into the frame; `unpack` gives views of it. A frame is input: every offset, shape and dtype in it
is checked before a view is made.
"""

from __future__ import annotations

import ctypes
import json
import struct
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.batch import Batch, BatchError, Ragged

MAGIC = b"MSH1"
ALIGN = 64
_PREFIX = struct.Struct("<4sI")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip


class FrameError(ValueError):
    """A value that cannot be sent, or bytes that are no frame."""


def pack(value: Any) -> Tensor:
    """uint8 `[n]` of its own memory. Raises `FrameError` for anything but plain data, tensors, `Ragged` and `Batch`."""
    tensors: list[tuple[Tensor, int]] = []
    size = 0

    def place(tensor: Tensor) -> dict[str, Any]:
        nonlocal size
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _DTYPES:
            raise FrameError(f"a tensor of {kind} cannot be sent")
        flat = tensor.detach().cpu().contiguous()
        at, size = size, size + _aligned(flat.nbytes)
        tensors.append((flat, at))
        return {"~t": [kind, list(tensor.shape), at]}

    header = json.dumps(_plain(value, place), separators=(",", ":")).encode()
    start = _aligned(_PREFIX.size + len(header))
    frame = torch.empty(start + size, dtype=torch.uint8)
    text = bytearray(_PREFIX.pack(MAGIC, len(header)) + header)
    frame[: len(text)] = torch.frombuffer(text, dtype=torch.uint8)
    for tensor, at in tensors:
        if tensor.nbytes:
            frame[start + at : start + at + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
    return frame


def unpack(frame: Tensor) -> Any:
    """The value, its tensors as views of the frame. Raises `FrameError` for anything malformed."""
    if len(frame) < _PREFIX.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    magic, length = _PREFIX.unpack(bytes_of(frame[: _PREFIX.size]))
    if magic != MAGIC or _PREFIX.size + length > len(frame):
        raise FrameError("these bytes are no frame")
    start = _aligned(_PREFIX.size + length)

    def view(kind: str, shape: list[int], at: int) -> Tensor:
        if kind not in _DTYPES or any(type(size) is not int or size < 0 for size in [*shape, at]):
            raise FrameError(f"a tensor of {kind!r} with shape {shape!r} at {at!r}")
        dtype, count = _DTYPES[kind], prod(shape)
        nbytes = count * dtype.itemsize
        if at % ALIGN or start + at + nbytes > max(len(frame), start):
            raise FrameError(f"a tensor of {nbytes} bytes at {at} in a frame of {len(frame)}")
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        return frame[start + at : start + at + nbytes].view(dtype).view(shape)

    try:
        return _value(json.loads(bytes_of(frame[_PREFIX.size : _PREFIX.size + length])), view)
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError, BatchError) as error:
        raise FrameError(f"a malformed header: {error}") from error


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor; torch alone has no way that needs no numpy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _plain(value: Any, place: Any) -> Any:
    """A value as JSON data, its tensors put in their places. What JSON cannot say is an object with one key that starts with `~`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return place(value)
    if isinstance(value, Ragged):
        return {"~r": [place(value.values), place(value.offsets)]}
    if isinstance(value, Batch):
        columns = {name: _plain(column, place) for name, column in value.columns.items()}
        return {"~b": [columns, place(value.ids), value.group_depth, value.most]}
    if isinstance(value, list):
        return [_plain(item, place) for item in value]
    if isinstance(value, tuple):
        return {"~u": [_plain(item, place) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("~") for key in value):
            return {key: _plain(item, place) for key, item in value.items()}
        return {"~d": [[_plain(key, place), _plain(item, place)] for key, item in value.items()]}
    raise FrameError(f"a {type(value).__name__} cannot be sent: say it in plain data (numbers, text, lists, dicts) and tensors")


def _value(data: Any, view: Any) -> Any:
    if isinstance(data, list):
        return [_value(item, view) for item in data]
    if not isinstance(data, dict):
        return data
    mark = next(iter(data), "")
    if not mark.startswith("~"):
        return {key: _value(item, view) for key, item in data.items()}
    inner = data[mark]
    if mark == "~t":
        return view(*inner)
    if mark == "~r":
        return _ragged(*(_value(part, view) for part in inner))
    if mark == "~b":
        columns, ids, group_depth, most = inner
        named = {name: _value(column, view) for name, column in columns.items()}
        return Batch(named, ids=_value(ids, view), group_depth=group_depth, most=most)
    if mark == "~u":
        return tuple(_value(item, view) for item in inner)
    if mark == "~d":
        return {_value(key, view): _value(item, view) for key, item in inner}
    raise FrameError(f"an unknown mark {mark!r}")


def _ragged(values: Tensor, offsets: Tensor) -> Ragged:
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(values) or bool((offsets.diff() < 0).any()):
        raise FrameError("a ragged column whose offsets do not fit its values")
    return Ragged(values, offsets)
