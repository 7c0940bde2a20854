"""The weights of a sharded model under the names and in the shapes that its files have.

    in memory    model.layers.0.mlp.experts.gate_up_proj           [experts, 2 x width, hidden]
    in files     model.layers.0.mlp.experts.3.gate_proj.weight     [width, hidden]
                 model.layers.0.mlp.experts.3.up_proj.weight       [width, hidden]

An engine or another model expects the names in files. A fused weight is first sharded over its last dim and
then divided into rows, so that each stored weight is a shard as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from meshctl.hf.errors import ModelError
from meshctl.hf.sharding import (
    in_blocks,
    local_of,
    number_of_shards,
    part_of,
    sharded_by_last_dim,
    whole_of,
)
from meshctl.hf.transformers_api import DiskFormat
from meshctl.hf.weights import copy_named


def stored_weights(disk: DiskFormat, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields the pairs (name in files, shard) of `weights`, which are pairs (name in memory, shard).

    A weight is whole on every rank if it does not consist of rows of one weight in memory. All ranks iterate
    together.
    """
    joined: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights:
        if not disk.is_stored(name):
            continue
        if not disk.is_converted(name):
            yield disk.renamed(name), in_blocks(tensor)
        elif rows := disk.rows_of(name, tuple(tensor.shape)):
            yield from _parts(_over_last_dim(tensor), rows)
        else:
            joined.setdefault(disk.unit_of(name), {})[name] = whole_of(tensor)
    for unit in joined.values():
        yield from disk.convert(unit).items()


@torch.no_grad()
def load_stored(disk: DiskFormat, own: Mapping[str, Tensor], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copies the tensors of `stream` in place into `own`, the model's tensors under their names in memory.

    `stream` has names in files. Each of its tensors is whole, a DTensor, or the shard of this rank that
    `stored_weights` yields. All ranks iterate together. Raises `ModelError` for an unknown name, a wrong
    shape, and a fused weight of which only a part arrives.
    """
    plain, fused = _targets(disk, own)
    arriving: dict[str, _Arriving] = {}
    for name, tensor in stream:
        if name not in fused:
            copy_named(plain, [(name, tensor)])
            continue
        target = fused[name]
        arriving.setdefault(target, _Arriving(disk, target, own[target])).add(name, tensor)
        if not arriving[target].missing:
            arriving.pop(target).finish()
    for target, one in arriving.items():
        raise ModelError(f"`{target}` is fused of several weights, and `{min(one.missing)}` is not sent")


def _targets(disk: DiskFormat, own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns name in files -> tensor, and for fused weights name in files -> name in memory."""
    plain: dict[str, Tensor] = {}
    fused: dict[str, str] = {}
    for name, tensor in own.items():
        if not disk.is_converted(name):
            plain[disk.renamed(name)] = tensor
            continue
        for stored in disk.rows_of(name, tuple(tensor.shape)) or {}:
            fused[stored] = name
    return plain, fused


class _Arriving:
    """A fused weight whose parts arrive one after another."""

    def __init__(self, disk: DiskFormat, name: str, own: Tensor) -> None:
        self._own, self._buffer = own, torch.empty_like(_over_last_dim(own))
        self._rows = disk.rows_of(name, tuple(own.shape)) or {}
        self.missing = set(self._rows)

    def add(self, name: str, tensor: Tensor) -> None:
        rows = self._rows[name]
        [(_, part)] = _parts(self._buffer, {name: rows})
        copy_named({name: part}, [(name, tensor)])
        _flat(local_of(self._buffer))[rows.flatten()] = _flat(local_of(part))
        self.missing.discard(name)

    def finish(self) -> None:
        local_of(self._own).copy_(part_of(whole_of(self._buffer), self._own))


def _over_last_dim(tensor: Tensor) -> Tensor:
    """Returns the tensor, sharded over its last dim if it is sharded at all. A last dim with fewer elements
    than there are shards is not sharded."""
    if not isinstance(tensor, DTensor):
        return tensor
    return sharded_by_last_dim(tensor) if tensor.shape[-1] >= number_of_shards(tensor) else whole_of(tensor)


def _parts(fused: Tensor, rows: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields the pairs (name, rows of `fused`), with the shards of `fused`."""
    local = _flat(local_of(fused))
    for name, own in rows.items():
        part = local[own.flatten().to(local.device)].view(*own.shape, local.shape[-1])
        yield name, _sharded_like(fused, part) if isinstance(fused, DTensor) else part


def _sharded_like(fused: DTensor, local: Tensor) -> DTensor:
    shape = torch.Size((*local.shape[:-1], fused.shape[-1]))
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    last = Shard(local.ndim - 1)
    placements = [each if each.is_replicate() else last for each in fused.placements]
    return DTensor.from_local(
        local, fused.device_mesh, placements, run_check=False, shape=shape, stride=strides
    )


def _flat(tensor: Tensor) -> Tensor:
    """Returns the tensor as a matrix of its rows."""
    return tensor.reshape(-1, tensor.shape[-1])
