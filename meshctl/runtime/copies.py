"""Copies of tensors in this host's memory, by whoever does them fastest.

libc's `memmove` begins in a fraction of the time that torch's `copy_` takes, and what does not fit the caches it writes past them, which
saves the processor from reading what it is about to overwrite: half as fast again. torch shares a copy among its threads, where it has
several.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

SHARED = 1 << 20
"""Bytes from which several threads of torch are faster than libc's one."""


def is_plain(tensor: Tensor) -> bool:
    """Whether its bytes are its values, in their order, in this host's memory."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def copy(into: Tensor, tensor: Tensor) -> None:
    """Fills a tensor with another of the same shape."""
    alike = into.dtype == tensor.dtype and into.numel() == tensor.numel() and is_plain(into) and is_plain(tensor)
    if alike and is_ours(tensor.nbytes):
        ctypes.memmove(into.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    else:
        into.copy_(tensor)


def is_ours(nbytes: int) -> bool:
    """Whether libc copies so many bytes, and not torch."""
    return nbytes < SHARED or torch.get_num_threads() == 1
