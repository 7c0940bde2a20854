"""A tensor over memory at an address, on any device, with a callback when the last view of it has died.

The tensor is imported by DLPack, which names the device of the memory. `__cuda_array_interface__` does not,
so torch would ask the driver. For memory of another device, read over NVLink or PCIe, the driver answers with
that device, which may have no number in this process. DLPack describes CPU memory as well, so tests without a
device run the same code."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass

_CPU, _CUDA = 1, 2
"""DLPack's device types."""
_UNSIGNED = 1
"""DLPack's code of unsigned integers."""
_NAME = b"dltensor"
"""The name of a capsule that is not consumed yet. Capsules keep a pointer to it."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Described(ctypes.Structure):
    """The struct `DLTensor` of DLPack's C header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """The struct `DLManagedTensor` of DLPack's C header."""

    _fields_ = (("tensor", _Described), ("context", ctypes.c_void_p), ("deleter", _Deleter))


@dataclass(frozen=True)
class _Kept:
    """The objects that live as long as torch uses an address."""

    managed: _Managed
    owner: object
    gone: Callable[[], None] | None


_kept: dict[int, _Kept] = {}
"""Address of a `DLManagedTensor` -> the objects that are kept for it."""


def tensor_at(
    address: int, nbytes: int, device: torch.device, owner: object, gone: Callable[[], None] | None = None
) -> Tensor:
    """Returns uint8 `[nbytes]` at an address.

    `owner` lives until the last view of the tensor dies. Then `gone` is called, on any thread and at any
    time, also by the garbage collector."""
    managed = _Managed(_described(address, nbytes, device), None, _died)
    key = ctypes.addressof(managed)
    _kept[key] = _Kept(managed, owner, gone)
    try:
        return torch.from_dlpack(_capsule(key, _NAME, None))
    except BaseException:
        del _kept[key]
        raise


def _described(address: int, nbytes: int, device: torch.device) -> _Described:
    kind = _Device(_CPU, 0) if device.type == "cpu" else _Device(_CUDA, device.index)
    shape, strides = (
        ctypes.cast((ctypes.c_int64 * 1)(number), ctypes.POINTER(ctypes.c_int64)) for number in (nbytes, 1)
    )
    return _Described(address, kind, 1, _Type(_UNSIGNED, 8, 1), shape, strides, 0)


def _deleter(kept: dict[int, _Kept], is_ending: Callable[[], bool]) -> Any:
    """Returns the function that torch calls when an address is no longer used. ctypes acquires the
    interpreter's lock for the call. Tensors may outlive this module, so the function refers to no global name
    of it and is never freed."""

    def died(key: int) -> None:
        gone = kept.pop(key).gone
        if gone and not is_ending():
            gone()

    made = _Deleter(died)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


_died = _deleter(_kept, sys.is_finalizing)
_capsule: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
