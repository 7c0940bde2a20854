"""Copies of tensors in this host's memory, by whoever does them fastest.

libc's `memmove` begins in a fraction of the time that torch's `copy_` takes, and moves 64 KiB half again as
fast; with large copies on all cores at once it falls behind, and torch shares those among its threads, where
it has several. Whole pages need no copy at all.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
LARGE = 1 << 20
"""Bytes from which torch is as fast or faster."""


def is_plain(tensor: Tensor) -> bool:
    """Whether its bytes are its values, in their order, in this host's memory; some tensors have none, as a
    DTensor."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or not tensor.is_cpu
        or not tensor.is_contiguous()
    ):
        return False
    return not tensor.is_conj() and not tensor.is_neg() and (bool(tensor.data_ptr()) or not tensor.numel())


def is_mappable(address: int, nbytes: int, last: bool) -> bool:
    """Whether bytes need no copy to lie after others: pages are mapped there (`strips.py`). Nothing comes
    after the `last` ones."""
    return nbytes > 0 and not address % PAGE and (last or not nbytes % PAGE)


def copy(into: Tensor, tensor: Tensor) -> None:
    """Fills a tensor with another of the same shape."""
    alike = into.dtype == tensor.dtype and into.shape == tensor.shape and is_plain(into) and is_plain(tensor)
    if alike and by_libc(tensor.nbytes):
        ctypes.memmove(into.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    else:
        into.copy_(tensor)


def by_libc(nbytes: int) -> bool:
    """Whether libc copies so many bytes, and not torch."""
    return nbytes < LARGE
