"""Converts parameters between local shards and whole tensors, and computes the norm of sharded gradients.

A model is sharded elsewhere: `building.distribute` applies tensor parallelism and FSDP to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from meshctl.hf.options import ModelError
from meshctl.topology.memory import are_divisible


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


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a DTensor with the mesh and the placements of `like`. All ranks of the mesh call it. Other
    tensors, and DTensors that already have these placements, are returned as they are."""
    if (
        not (isinstance(tensor, DTensor) and isinstance(like, DTensor))
        or tensor.placements == like.placements
    ):
        return tensor
    return distribute_tensor(whole_of(tensor), like.device_mesh, like.placements, src_data_rank=None)


def in_blocks(tensor: Tensor) -> Tensor:
    """Returns a tensor whose local shard is one block of the whole tensor.

    Checkpoints and syncs describe a shard by one offset and one size. The shard of a fused weight under tp is
    a part of each of the weights that are fused, and has no such description. For such a weight, the result
    is a copy that is sharded over its last dim, and the function is a collective operation. Other tensors
    are returned as they are.
    """
    if not isinstance(tensor, DTensor) or _is_block(tensor):
        return tensor
    return sharded_by_last_dim(tensor)


def sharded_by_last_dim(tensor: DTensor) -> DTensor:
    """Returns a copy of a DTensor that is sharded over its last dim by all dims of its mesh that shard it.
    All ranks of the mesh call it. Each rank holds the whole tensor until the function returns."""
    last = Shard(tensor.ndim - 1)
    placements = [each if each.is_replicate() else last for each in tensor.placements]
    return distribute_tensor(whole_of(tensor), tensor.device_mesh, placements, src_data_rank=None)


def _is_block(tensor: DTensor) -> bool:
    """Returns whether the local shard of a DTensor is one block of the whole tensor.

    If tp shards a dim before FSDP does, the strided placement of FSDP has the size of tp as its
    `split_factor`, and each shard is a block. Another factor means that each of several fused weights is
    sharded by itself.
    """
    mesh = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    sharding = [(each.dim, size, each) for each, size in mesh if not each.is_replicate()]  # type: ignore[attr-defined]
    for at, (dim, _, placement) in enumerate(sharding):
        inner = prod(size for other, size, _ in sharding[at + 1 :] if other == dim)
        if getattr(placement, "split_factor", inner) != inner:
            return False
    return True


def whole_of(tensor: Tensor) -> Tensor:
    """Returns the whole tensor. For a DTensor this is a collective operation: all ranks of its mesh call
    it."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def check_rows(model: nn.Module, tp: int, shards: int) -> None:
    """Raises `ModelError` if tp has divided the rows of a parameter into parts that FSDP cannot shard."""
    for name, one in model.named_parameters():
        if isinstance(one, DTensor) and one.placements == (Shard(0),) and one.device_mesh.ndim == 1:
            is_on_tp = one.device_mesh.mesh_dim_names == ("tp",)
            if is_on_tp and not are_divisible(len(one), tp, shards):
                raise ModelError(
                    f"tp {tp} divides the {len(one)} rows of `{name}` unevenly, and {shards} ranks of fsdp "
                    "cannot shard these parts; use another tp size, or tp without fsdp"
                )


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
