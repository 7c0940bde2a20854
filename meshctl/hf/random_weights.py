"""Random weights of a sharded model, drawn one layer at a time.

The seed and the name of a layer determine its weights, so that they are the same in every layout. Each rank
draws a whole layer, copies its own shards, and drops the layer. It never holds the whole model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Set
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.hf import peft_api, transformers_api
from meshctl.hf.sharding import local_of, part_of
from meshctl.hf.stages import listed_names


def new_model(
    config: Any,
    head: str,
    dtype: torch.dtype,
    attention: str | None,
    seed: int,
    device: torch.device = torch.device("cpu"),
    distribute: transformers_api.Distribute = lambda model: None,
) -> Any:
    """Returns a model with random weights on `device`. Each rank holds only its shards.

    The model is created on torch's `meta` device, where `distribute` shards it. `seed` determines the
    weights, which are the same in every layout. Raises `ModelError` if the model has no such head.
    """
    transformers_api.class_of(config, head)
    options = {"dtype": dtype, "attn_implementation": attention}
    model, whole = (transformers_api.outline(config, head, **options) for _ in range(2))
    transformers_api.untie(model)
    distribute(model)
    model.to_empty(device=device)
    tied = transformers_api.tied_names(whole)
    draw(model, whole, {name for name, _ in _tensors(whole)} - tied, seed)
    transformers_api.tie(model)
    return model


@torch.no_grad()
def draw(model: nn.Module, whole: nn.Module, names: Set[str], seed: int) -> None:
    """Fills the parameters and buffers `names` of `model`, which may be sharded, in place.

    `whole` is the same model without shards and adapters, on torch's `meta` device. Its classes initialize
    the weights.
    """
    own = {peft_api.plain_name(name): tensor for name, tensor in _tensors(model)}
    own = {listed: own[name] for name, listed in listed_names(model, own).items()}
    names = names & own.keys()
    for owner, name, layer in _layers(whole, whole, ""):
        is_alone = not _has_lists(layer)
        paths = [f"{name}.{key}" if name else key for key, _ in _tensors(layer, is_alone)]
        if names.isdisjoint(paths):
            continue
        layer.to_empty(device="cpu", recurse=is_alone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, name))
            if is_alone:
                _initialize(owner, layer)
            else:
                transformers_api.initialize(owner, layer)
        for path, (_, tensor) in zip(paths, _tensors(layer, is_alone), strict=True):
            if path in names:
                target = local_of(own[path])
                target.copy_(part_of(tensor.to(target), own[path]))
        layer.to("meta")


def seed_of(seed: int, name: str) -> int:
    """Returns a seed that is different for each `name`."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest(), "big")


def _layers(owner: nn.Module, module: nn.Module, name: str) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yields (the model of transformers that initializes a layer, name, layer), in order.

    A layer is a module that contains no list of modules. A module with such lists is yielded after its
    children, for the tensors that it holds itself.
    """
    if _has_lists(module):
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            yield from _layers(_owner_of(child, owner), child, path)
    yield owner, name, module


def _has_lists(module: nn.Module) -> bool:
    return any(isinstance(one, nn.ModuleList) for one in module.modules())


def _initialize(owner: nn.Module, module: nn.Module) -> None:
    """Initializes a module after its children, as transformers does."""
    for child in module.children():
        _initialize(_owner_of(child, owner), child)
    transformers_api.initialize(owner, module)


def _owner_of(module: nn.Module, owner: nn.Module) -> nn.Module:
    """Returns the model of transformers that initializes a module: the module itself if it is such a model,
    and otherwise `owner`, the innermost model that contains it."""
    return module if transformers_api.is_model(module) else owner


def _tensors(module: nn.Module, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
    buffers = module.named_buffers(recurse=recurse, remove_duplicate=False)
    return chain(parameters, buffers)
