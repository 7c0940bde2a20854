"""Copies of tensors in host memory, by memmove or by torch, whichever is faster.

memmove starts in a fraction of the time of torch's `copy_` and is half again as fast at 64 KiB. For large
copies torch is as fast or faster, since it uses all of its threads.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

MEMMOVE_MAX = 1 << 20
"""The size in bytes from which on torch copies at least as fast as memmove."""


def is_plain(tensor: Tensor) -> bool:
    """Whether the bytes of a tensor are its values, in order, in host memory. Some tensors have no bytes,
    such as a DTensor."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(tensor.data_ptr()) or not tensor.numel()


def as_plain(tensor: Tensor) -> Tensor:
    """Returns the tensor if it is plain, else a copy in host memory that is."""
    if is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def copy(into: Tensor, tensor: Tensor) -> None:
    """Fills a tensor with another of the same shape."""
    are_alike = into.dtype == tensor.dtype and into.shape == tensor.shape
    if are_alike and use_memmove(tensor.nbytes) and is_plain(into) and is_plain(tensor):
        ctypes.memmove(into.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    else:
        into.copy_(tensor)


def use_memmove(nbytes: int) -> bool:
    return nbytes < MEMMOVE_MAX
