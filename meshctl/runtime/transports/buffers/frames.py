"""A value as bytes: plain data and tensors in one flat buffer, and back. Never pickle.

    "MSH2" | length of the header | header: msgpack | tensor | tensor | ...        each tensor at a multiple
                                                                                   of 64 bytes

A `Frame` is laid out first and then written to the memory from which it is read, so each tensor is copied
once. For a tensor on torch's `meta` device the frame only has space, which others fill. An out-of-band tensor
is not copied into the frame; the header has its number. A tensor that occurs several times in a value, such
as offsets that ragged columns share, is in the frame once. `unpack` returns views of a frame. A received
frame is untrusted: every offset, shape and dtype in it is checked before a view is made, and the depth to
which values are nested is bounded.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from reprlib import repr as short
from typing import Any

import msgpack
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged
from meshctl.runtime.transports.buffers.memcpy import is_plain, move, use_memmove

MAGIC = b"MSH2"
ALIGN = 64
_PREFIX = struct.Struct("<4sI")
_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
"""The dtypes that can be sent. A header has the index of a dtype, so their order never changes."""
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
_TENSOR, _RAGGED, _BATCH, _TUPLE, _LONG, _OUT_OF_BAND = range(1, 7)
"""msgpack's extension types."""
_DEPTH = 100
"""The most levels to which extension types may be nested. msgpack copies a value once for each level, and
thousands of them overflow the stack."""
_ON_DEVICE = 64
"""Added to the index of a dtype where the sender's tensor is on a device."""
MAX_DIMS = 64
"""The most dims of a tensor that can be sent. torch's own operations have the same limit."""


class FrameError(ValueError):
    """A value that cannot be sent, or bytes that are no frame."""


class Frame:
    """A value laid out: how many bytes it takes, and what goes where. Raises `FrameError` for anything but
    plain data, tensors, `Ragged` and `Batch`."""

    def __init__(self, value: Any, out_of_band: Callable[[Tensor], bool] = lambda tensor: False) -> None:
        """`out_of_band` returns whether a tensor travels beside the frame instead of being copied into it."""
        self.out_of_band: list[Tensor] = []
        """The tensors that travel with the frame, in this order."""
        self._is_out_of_band = out_of_band
        self._tensors: list[tuple[Tensor, int]] = []
        self._known: dict[int, tuple[Tensor, msgpack.ExtType]] = {}
        """The packed form of a tensor by its `id`. The tensor is kept, so that its `id` is not used again."""
        self._size = self._depth = 0
        header = self._packed(value)
        self._head = _PREFIX.pack(MAGIC, len(header)) + header
        self._start = _aligned(len(self._head)) if self._tensors else len(self._head)
        self.nbytes = self._start + self._size

    @property
    def moved(self) -> int:
        """The number of bytes in the frame and in the tensors that travel out of band."""
        return self.nbytes + sum(tensor.nbytes for tensor in self.out_of_band)

    def write(self, into: Tensor) -> Tensor:
        """Writes the frame into uint8 `[nbytes]` of this host's memory and returns that tensor. The bytes of
        tensors on the `meta` device are left as they are."""
        if into.nbytes < self.nbytes:
            raise FrameError(f"{into.nbytes} bytes for a frame of {self.nbytes}")
        memory = into.data_ptr()
        ctypes.memmove(memory, self._head, len(self._head))
        for tensor, at in self._tensors:
            begin, nbytes = self._start + at, tensor.nbytes
            if not nbytes or tensor.is_meta:
                continue
            if use_memmove(nbytes) and is_plain(tensor):
                move(memory + begin, tensor.data_ptr(), nbytes)
            else:
                into[begin : begin + nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return into

    def to_bytes(self) -> bytes:
        """Returns the frame as bytes, which suits small frames. Equal values have equal bytes. Tensors on the
        `meta` device are zeros."""
        if not self._tensors:
            return self._head
        return bytes_of(self.write(torch.zeros(self.nbytes, dtype=torch.uint8)))

    @property
    def is_plain(self) -> bool:
        """True if the frame consists of memory that `pieces` can return."""
        return not self.out_of_band and all(is_plain(tensor) for tensor, _ in self._tensors)

    def pieces(self) -> list[memoryview]:
        """Returns the bytes of a plain frame, of tensors their own memory."""
        found = [memoryview(self._head.ljust(self._start, b"\0"))]
        for tensor, _ in self._tensors:
            if tensor.nbytes:
                flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
                found += [flat.numpy().data, memoryview(bytes(-tensor.nbytes % ALIGN))]
        return found

    def _packed(self, value: Any) -> bytes:
        self._depth += 1
        if self._depth > _DEPTH:
            raise FrameError(f"a value that cannot be sent: more than {_DEPTH} tuples lie in one another")
        try:
            data: bytes = msgpack.packb(value, default=self._to_ext, strict_types=True)
        except FrameError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            raise FrameError(f"a value that cannot be sent: {error}") from None
        self._depth -= 1
        return data

    def _to_ext(self, value: Any) -> Any:
        """Returns the form in which msgpack encodes a value that it does not know. Raises `FrameError`."""
        match value:
            case Tensor():
                if id(value) not in self._known:
                    self._known[id(value)] = value, self._tensor_ext(value.detach())
                return self._known[id(value)][1]
            case Ragged():
                return msgpack.ExtType(_RAGGED, self._packed([value.values, value.offsets]))
            case Batch():
                return msgpack.ExtType(
                    _BATCH, self._packed([value.columns, value.ids, value.group_depth, value.most])
                )
            case tuple():
                return msgpack.ExtType(_TUPLE, self._packed(list(value)))
            case int() if value.bit_length() > 63:
                return msgpack.ExtType(
                    _LONG, int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
                )
            case str() | int() | float() | list() | dict():  # a class of the user's, derived from plain data
                plain: Any = next(kind for kind in (str, int, float, list, dict) if isinstance(value, kind))
                return plain(value)
        raise FrameError(
            f"a value of the type {type(value).__name__} cannot be sent: express it as plain data (numbers, "
            "text, lists, dicts) and tensors"
        )

    def _tensor_ext(self, tensor: Tensor) -> msgpack.ExtType:
        """Adds a tensor. Its description is `[dtype, place, shape ...]`, where the place is the offset in the
        frame, or the number of an out-of-band tensor."""
        if why := not_sent(tensor):
            raise FrameError(why)
        if self._is_out_of_band(tensor):
            kind, place = _OUT_OF_BAND, len(self.out_of_band)
            self.out_of_band.append(tensor)
        else:
            kind, place = _TENSOR, self._size
            self._tensors.append((tensor, place))
            self._size += _aligned(tensor.nbytes)
        return msgpack.ExtType(kind, self._packed([_dtype_code(tensor), place, *tensor.shape]))


def not_sent(tensor: Tensor) -> str:
    """Returns the reason why a tensor cannot be sent; empty if it can."""
    refused: object = ""
    if tensor.dtype not in _NUMBERS:
        refused = tensor.dtype
    elif tensor.layout is not torch.strided:
        refused = tensor.layout
    elif tensor.is_nested:
        refused = "nested rows"
    elif hasattr(tensor, "to_local"):
        return "a DTensor cannot be sent: give its to_local() or its full_tensor()"
    elif tensor.ndim > MAX_DIMS:
        refused = f"{tensor.ndim} dims"
    return f"a tensor of {str(refused).removeprefix('torch.')} cannot be sent" if refused else ""


def on_device(tensor: Tensor) -> bool:
    """Returns whether a tensor has values outside of this host's memory."""
    return not tensor.is_cpu and not tensor.is_meta


def _dtype_code(tensor: Tensor) -> int:
    """Returns the number of a tensor's dtype in a header, which also says whether it is on a device."""
    return _NUMBERS[tensor.dtype] + _ON_DEVICE * on_device(tensor)


def pack(value: Any) -> bytes:
    """Returns the frame of a value as bytes. Equal values have equal frames. Raises `FrameError`."""
    return Frame(value).to_bytes()


def unpack(
    frame: Tensor | bytes, out_of_band: Sequence[Tensor] = (), device: torch.device | None = None
) -> Any:
    """Returns the value of a frame, which is uint8 `[n]` or bytes. `out_of_band` are its out-of-band tensors,
    uint8 `[n]` each.

    Tensors of the value are views of the frame and of `out_of_band`; for a frame of type `bytes` they are
    views of a copy. Tensors that were on a device are put on `device`, where one is given. Raises
    `FrameError` for a malformed frame.
    """
    size = len(frame)
    if size < _PREFIX.size:
        raise FrameError(f"a frame of {size} bytes")
    magic, length = _PREFIX.unpack(_bytes_in(frame, 0, _PREFIX.size))
    end = _PREFIX.size + length
    if magic != MAGIC or end > size:
        raise FrameError("these bytes are not a frame")
    header = _bytes_in(frame, _PREFIX.size, end)
    return _Reader(frame, _aligned(end), out_of_band, device).value(header)


def _bytes_in(frame: Tensor | bytes, start: int, stop: int) -> bytes:
    if isinstance(frame, bytes):
        return frame[start:stop]
    return ctypes.string_at(frame.data_ptr() + start, stop - start)


class _Reader:
    def __init__(
        self, frame: Tensor | bytes, start: int, out_of_band: Sequence[Tensor], device: torch.device | None
    ) -> None:
        """`start` is the place of the first tensor in the frame."""
        self._frame, self._size, self._start = frame, len(frame), start
        self._out_of_band, self._device = out_of_band, device
        self._depth = 0
        self._views: dict[tuple[int, ...], Tensor] = {}
        """Description of a tensor -> its view."""
        self._ragged: dict[int, tuple[int, Tensor]] = {}
        """`id` of offsets that were checked -> the number of values that they fit, and the offsets."""

    def value(self, header: bytes) -> Any:
        self._depth += 1
        if self._depth > _DEPTH:
            raise FrameError(f"a malformed header: more than {_DEPTH} values lie in one another")
        try:
            value = msgpack.unpackb(header, ext_hook=self._unpacked, strict_map_key=False)
        except FrameError:
            raise
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
            BatchError,
            msgpack.UnpackException,
        ) as error:
            raise FrameError(f"a malformed header: {short(str(error))}") from None
        self._depth -= 1
        return value

    def _unpacked(self, kind: int, data: bytes) -> Any:
        if kind == _LONG:
            return int.from_bytes(data, "big", signed=True)
        inner = self.value(data)
        if kind == _TENSOR:
            return self._view(*inner)
        if kind == _OUT_OF_BAND:
            return self._to_device(inner[0], self._out_of_band_tensor(*inner))
        if kind == _RAGGED:
            return self._ragged_of(*inner)
        if kind == _TUPLE:
            return tuple(inner)
        if kind == _BATCH:
            return self._batch(*inner)
        raise FrameError(f"an unknown kind {kind}")

    def _view(self, *fields: int) -> Tensor:
        try:
            found = self._views.get(fields)
        except TypeError:
            raise FrameError(f"a tensor of {short(fields)}") from None
        if found is None:
            view = self._tensor_in_frame(*fields)
            found = self._views[fields] = self._to_device(fields[0], view)
        return found

    def _to_device(self, kind: int, tensor: Tensor) -> Tensor:
        return tensor.to(self._device) if self._device and kind >= _ON_DEVICE else tensor

    def _tensor_in_frame(self, kind: int, at: int, *shape: int) -> Tensor:
        dtype, nbytes = self._checked(kind, at, shape)
        begin = self._start + at
        if at % ALIGN or begin + nbytes > max(self._size, self._start):
            raise FrameError(f"a tensor of {nbytes} bytes at {at} in a frame of {self._size}")
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        self._frame = tensor_of(self._frame)
        # each tensor has a storage of its own, so torch counts the writes into it alone
        data = torch.from_numpy(self._frame.numpy()[begin : begin + nbytes]).view(dtype)
        return data if len(shape) == 1 else data.view(shape)

    def _ragged_of(self, values: Tensor, offsets: Tensor) -> Ragged:
        checked = self._ragged.get(id(offsets))
        if checked and isinstance(values, Tensor) and values.ndim and values.shape[0] == checked[0]:
            return Ragged(values, offsets)
        found = ragged(values, offsets)
        self._ragged[id(offsets)] = (values.shape[0], offsets)
        return found

    def _out_of_band_tensor(self, kind: int, number: int, *shape: int) -> Tensor:
        dtype, nbytes = self._checked(kind, number, shape)
        if number >= len(self._out_of_band) or self._out_of_band[number].nbytes != nbytes:
            raise FrameError(
                f"a tensor of {nbytes} bytes beside the frame, as number {number}, where "
                f"{len(self._out_of_band)} came"
            )
        return self._out_of_band[number].view(dtype).view(shape)

    def _batch(self, columns: dict[str, Any], ids: Any, group_depth: int, most: int) -> Batch:
        for name, column in columns.items():
            if type(name) is not str or not isinstance(column, (Tensor, Ragged, list)):
                raise FrameError("a batch whose columns are none")
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 2:
            raise FrameError("a batch whose ids are not numbers")
        are_counts = type(group_depth) is int and type(most) is int and most >= 0
        if not are_counts or not 0 <= group_depth <= ids.shape[1]:
            raise FrameError(f"a batch of group depth {short(group_depth)}, the most {short(most)}")
        # batches that are derived from this one have the same ids, and may outlive the frame
        return Batch(columns, ids=ids.clone(), group_depth=group_depth, most=most)

    @staticmethod
    def _checked(kind: int, at: int, shape: Sequence[int]) -> tuple[torch.dtype, int]:
        """Returns the dtype and the size in bytes of a tensor that a header describes. Raises `FrameError`
        for a description that torch would refuse."""
        spread = 1
        """The number of elements, where a dim of size 0 counts as 1, as in torch's strides."""
        for number in (kind, at, *shape):
            if type(number) is not int or not 0 <= number < 1 << 63:
                raise FrameError(f"a tensor of shape {short(shape)} and kind {short(kind)} at {short(at)}")
        for size in shape:
            spread *= size or 1
        number = kind - _ON_DEVICE * (kind >= _ON_DEVICE)
        if number >= len(_DTYPES):
            raise FrameError(f"a tensor of the unknown kind {kind}")
        dtype = _DTYPES[number]
        if len(shape) > MAX_DIMS or spread * dtype.itemsize >= 1 << 63:
            raise FrameError(f"a tensor of shape {short(shape)}")
        return dtype, 0 if 0 in shape else spread * dtype.itemsize


def tensor_of(data: Tensor | bytes) -> Tensor:
    """Returns bytes as uint8 `[n]`."""
    if isinstance(data, Tensor):
        return data
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def bytes_of(tensor: Tensor) -> bytes:
    """Returns the bytes of a contiguous CPU tensor, without numpy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def ragged(values: Tensor, offsets: Tensor) -> Ragged:
    """Returns the ragged column of received values and offsets. Raises `FrameError` if they form none."""
    if (
        not isinstance(values, Tensor)
        or not isinstance(offsets, Tensor)
        or offsets.ndim != 1
        or not len(offsets)
    ):
        raise FrameError("a ragged column that is none")
    if offsets.dtype != torch.int64 or not values.ndim:
        raise FrameError("a ragged column whose offsets are not numbers")
    if not fits(values, offsets):
        raise FrameError("a ragged column whose offsets do not fit its values")
    return Ragged(values, offsets)


def fits(values: Tensor, offsets: Tensor) -> bool:
    """Returns whether offsets, int64 `[n + 1]`, divide all of the values into `n` rows."""
    bounds = offsets.cpu().numpy()  # for short columns this is faster than torch
    if bounds[0] or bounds[-1] != values.shape[0]:
        return False
    return not bool((bounds[1:] < bounds[:-1]).any())
