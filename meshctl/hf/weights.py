"""Reads and writes the weights of a sharded model. Names are those of the Hugging Face model, and values are
the shards of this rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshctl.hf import peft_api
from meshctl.hf.errors import ModelError
from meshctl.hf.pipeline.stage_parts import listed_names
from meshctl.hf.random_weights import seed_of
from meshctl.hf.sharding import local_of, part_of, whole_of


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


@torch.no_grad()
def reset_adapter(model: Any, seed: int) -> None:
    """Initializes a new adapter in place: `lora_A` to random values with the distribution of peft, and
    `lora_B` to 0. `seed` determines the values, which are the same in every layout."""
    for name, tensor in held(model).items():
        if ".lora_B." in name:
            local_of(tensor).zero_()
        elif ".lora_A." in name:
            generator = torch.Generator().manual_seed(seed_of(seed, name))
            bound = tensor.shape[1] ** -0.5  # kaiming_uniform_ with a = sqrt(5)
            drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(
                -bound, bound, generator=generator
            )
            local_of(tensor).copy_(part_of(drawn.to(tensor.device, tensor.dtype), tensor))
