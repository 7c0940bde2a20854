"""The weights of a sharded model: under the names of the Hugging Face model, as shards of this rank, and
under the names and in the shapes that its files have.

    in memory    model.layers.0.mlp.experts.gate_up_proj           [experts, 2 x width, hidden]
    in files     model.layers.0.mlp.experts.3.gate_proj.weight     [width, hidden]
                 model.layers.0.mlp.experts.3.up_proj.weight       [width, hidden]

An engine or another model expects the names in files. A fused weight is first sharded over its last dim and
then divided into rows, so that each stored weight is a shard as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from meshctl.hf import peft_api
from meshctl.hf.options import ModelError
from meshctl.hf.sharding import (
    in_blocks,
    local_of,
    number_of_shards,
    part_of,
    sharded_by_last_dim,
    whole_of,
)
from meshctl.hf.stages import listed_names
from meshctl.hf.transformers_api import DiskFormat


def held(model: Any) -> dict[str, Tensor]:
    """Returns the parameters and saved buffers of the model: name -> tensor. A tied parameter is listed under
    its first name only."""
    state = model.state_dict(keep_vars=True)
    return {listed: state[name] for name, listed in listed_names(model, state).items()}


def parameters(model: Any) -> list[tuple[str, nn.Parameter]]:
    """Returns the pairs (name, parameter) of the model. A tied parameter is listed under its first name
    only."""
    named = dict(model.named_parameters())
    return [(listed, named[name]) for name, listed in listed_names(model, named).items()]


def adapter_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the pairs (name, tensor) of the adapter's parameters. The names are those in the files of
    peft."""
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            yield peft_api.adapter_name(name), tensor.detach()


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) for the weights of the base model, with the adapter added to them.

    All ranks iterate together, because the two small matrices of each adapted layer are gathered.
    """
    layers = peft_api.layers(model)
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            continue
        detached = tensor.detach()
        yield peft_api.plain_name(name), _merged(detached, layers[name]) if name in layers else detached


def outlines(model: Any) -> Mapping[str, Tensor]:
    """Returns the base model's weights without their values: name in `merged_weights` -> tensor of torch's
    `meta` device with the whole shape."""
    return {
        peft_api.plain_name(name): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in held(model).items()
        if not peft_api.is_adapter(name)
    }


def _merged(weight: Tensor, layer: Any) -> Tensor:
    inner = whole_of(layer.lora_A[peft_api.ADAPTER].weight)
    outer = whole_of(layer.lora_B[peft_api.ADAPTER].weight)
    change = part_of(peft_api.change_of(layer, inner, outer).to(weight.dtype), weight)
    result = weight.clone()
    local_of(result).add_(change)
    return result


@torch.no_grad()
def copy_named(own: Mapping[str, Tensor], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copies the tensors of `stream` in place into the tensors of `own` with the same names.

    Each tensor of `stream` is whole, a DTensor, or the shard of this rank. Raises `ModelError` for an unknown
    name or a wrong shape.
    """
    for name, tensor in stream:
        if name not in own:
            raise ModelError(f"`{name}` is sent to the model, which has no such parameter")
        target = local_of(own[name])
        part = _part(tensor, own[name], target)
        if part.shape != target.shape:
            raise ModelError(
                f"`{name}` has the shape {list(own[name].shape)}, and {list(tensor.shape)} is sent"
            )
        target.copy_(part)


def _part(tensor: Tensor, own: Tensor, target: Tensor) -> Tensor:
    """Returns the shard of `tensor` that this rank stores. `tensor` is whole, a DTensor, or already this
    shard. `own` is the model's parameter, and `target` is the memory of its local shard."""
    if isinstance(tensor, DTensor):
        is_alike = isinstance(own, DTensor) and own.placements == tensor.placements
        if is_alike and own.device_mesh == tensor.device_mesh:  # type: ignore[attr-defined]
            return local_of(tensor)
        tensor = whole_of(tensor)
    return tensor if tensor.shape == target.shape else part_of(tensor.to(target), own)


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
    return tensor.reshape(-1, tensor.shape[-1])
