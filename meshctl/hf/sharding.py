"""Converts parameters between local shards and whole tensors, and computes the norm of sharded gradients.

A model is sharded elsewhere: `building.distribute` applies tensor parallelism and FSDP to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local_of(tensor: Tensor) -> Tensor:
    """Returns the local shard of a DTensor, or the whole of a plain tensor. The result shares the memory of
    `tensor`."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Returns the shard of `whole` that has the placement of this rank's shard of `like`. Every rank has the
    same `whole`, so nothing is communicated."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()


def whole_of(tensor: Tensor) -> Tensor:
    """Returns the whole tensor. For a DTensor this is a collective operation: all ranks of its mesh call
    it."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def whole_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, whole tensor) in order. It gathers one tensor at a time. All ranks iterate together."""
    for name, tensor in tensors:
        yield name, whole_of(tensor)


def number_of_shards(tensor: Tensor) -> int:
    """Returns the number of different shards of a tensor; 1 for a tensor that is whole on each rank."""
    if not isinstance(tensor, DTensor):
        return 1
    count = 1
    for placement, size in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
        count *= 1 if placement.is_replicate() else size
    return count


def squared_norm(tensors: Iterable[Tensor], ranks: int) -> Tensor:
    """Returns this rank's part of the squared norm of gradients, 0-dim float64. The sum of the parts over all
    `ranks` is the squared norm.

    If n ranks hold the same shard, each of them adds 1/n of its squared norm. Parameters on different meshes
    and plain parameters therefore need no separate collective operations.
    """
    parts: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(number_of_shards(tensor), []).append(local_of(tensor))
    total = torch.zeros((), dtype=torch.float64)
    for shards, local in parts.items():
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(local)])
        total = total.to(norms.device) + norms.square().sum() * shards / ranks
    return total
