"""The arguments of collective operations: their checks, which raise `CollectiveError` before any rank waits,
and the part that must be equal on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.runtime.collectives.reductions import refusal
from meshctl.runtime.errors import CollectiveError
from meshctl.runtime.progress import Form
from meshctl.topology.sizes import whole


def check_tensor(operation: str, tensor: object, dims: int = 0) -> None:
    """Requires a plain, strided tensor with at least `dims` dims."""
    if not isinstance(tensor, Tensor):
        raise CollectiveError(f"{operation} takes a tensor, not a {type(tensor).__name__}")
    if hasattr(tensor, "to_local"):
        raise CollectiveError(
            f"{operation} takes a plain tensor, not a DTensor: give its to_local() or its full_tensor()"
        )
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise CollectiveError(f"{operation} takes a strided tensor, not one of layout {layout}")
    if tensor.ndim < dims:
        raise CollectiveError(f"{operation} goes along dim 0, but this tensor has no dims")


def check_reduction(tensor: Tensor, op: str) -> None:
    """Requires a dtype that `op` reduces."""
    if reason := refusal(tensor.dtype, op):
        raise CollectiveError(reason)


def check_tensors(operation: str, tensors: object, count: int, uneven: bool) -> None:
    """Requires a list of `count` tensors of one dtype, device and shape; with `uneven` dim 0 may differ."""
    if not isinstance(tensors, (list, tuple)):
        raise CollectiveError(
            f"{operation} takes a list of tensors, one for each rank, not a {type(tensors).__name__}"
        )
    if len(tensors) != count:
        raise CollectiveError(
            f"{operation} takes one tensor for each of the {count} ranks, not {len(tensors)}"
        )
    for tensor in tensors:
        check_tensor(operation, tensor, dims=int(uneven))
    kinds = {(tensor.dtype, tensor.device, tuple(tensor.shape[int(uneven) :])) for tensor in tensors}
    if len(kinds) > 1:
        forms = {f"{list(tensor.shape)} {dtype_name(tensor.dtype)} on {tensor.device}" for tensor in tensors}
        rule = "except for the size of dim 0"
        if not uneven:
            rule = "(`uneven=True` lets dim 0 differ)" if operation == "all_to_all" else ""
        same = f"of one dtype, device and shape {rule}".rstrip()
        raise CollectiveError(f"{operation} takes tensors {same}, not {' and '.join(sorted(forms))}")


def checked_rank(operation: str, rank: int, size: int) -> int:
    """Returns `rank`, a rank of a collective of `size` ranks."""
    number = whole(rank)
    if number is None or not 0 <= number < size:
        raise CollectiveError(f"{operation} names a rank of its collective, 0 to {size - 1}, not {rank!r}")
    return number


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def extent(tensor: Tensor) -> tuple[int, ...]:
    """Returns the part of a shape that must be equal on all ranks: all sizes other than 1."""
    return tuple([size for size in tensor.shape if size != 1])


def gather_form(operation: str, tensor: Tensor, uneven: bool) -> Form:
    """Returns the part of the arguments of a gather that must be equal on all ranks."""
    equal = ("uneven", *tensor.shape[1:]) if uneven else (extent(tensor),)
    return operation, tensor.dtype, *equal
