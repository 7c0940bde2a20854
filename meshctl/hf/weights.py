"""Reads and writes the weights of a sharded model: each by its name in the Hugging Face model, and on each
rank as its shard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshctl.hf import peft_api, transformers_api
from meshctl.hf.errors import ModelError
from meshctl.hf.sharding import local_of, part_of, whole_of


def held(model: Any) -> dict[str, Tensor]:
    """Returns name in the model -> parameter or buffer that belongs to its state, without second names of
    tied parameters."""
    tied = transformers_api.tied_names(model)
    state = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if peft_api.plain_name(name) not in tied}


def parameters(model: Any) -> list[tuple[str, nn.Parameter]]:
    """Returns (name, parameter) of the model, tied ones once."""
    tied = transformers_api.tied_names(model)
    return [(name, one) for name, one in model.named_parameters() if peft_api.plain_name(name) not in tied]


def adapter_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the parameters of the adapter, named as in peft's files."""
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            yield peft_api.adapter_name(name), tensor.detach()


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of the base model with the adapter added, one after another.

    All ranks iterate together, because the two small matrices of an adapted layer are gathered.
    """
    layers = peft_api.layers(model)
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            continue
        layer = name.removesuffix(".base_layer.weight")
        detached = tensor.detach()
        yield peft_api.plain_name(name), _merged(detached, layers[layer]) if layer in layers else detached


def _merged(weight: Tensor, layer: Any) -> Tensor:
    inner = whole_of(layer.lora_A[peft_api.ADAPTER].weight)
    outer = whole_of(layer.lora_B[peft_api.ADAPTER].weight)
    change = part_of((outer @ inner * peft_api.scaling(layer)).to(weight.dtype), weight)
    result = weight.clone()
    local_of(result).add_(change)
    return result


@torch.no_grad()
def copy_named(own: Mapping[str, Tensor], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copies tensors, each whole or this rank's shard, into those of the same names. Raises `ModelError`."""
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
    """Returns the part of `tensor` that this rank stores. `tensor` is whole, a DTensor, or already that part.
    `own` is the model's parameter, and `target` the memory of its local shard."""
    if isinstance(tensor, DTensor):
        is_alike = isinstance(own, DTensor) and own.placements == tensor.placements
        if is_alike and own.device_mesh == tensor.device_mesh:  # type: ignore[attr-defined]
            return local_of(tensor)
        tensor = whole_of(tensor)
    return tensor if tensor.shape == target.shape else part_of(tensor.to(target), own)


@torch.no_grad()
def reset_adapter(model: Any, seed: int) -> None:
    """Sets a new adapter: `lora_A` to the values that peft draws, in every layout the same; `lora_B` to 0."""
    for name, tensor in held(model).items():
        if ".lora_B." in name:
            local_of(tensor).zero_()
        elif ".lora_A." in name:
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            bound = tensor.shape[1] ** -0.5  # kaiming_uniform_ with a = sqrt(5)
            drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(
                -bound, bound, generator=generator
            )
            local_of(tensor).copy_(part_of(drawn.to(tensor.device, tensor.dtype), tensor))


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest(), "big")
