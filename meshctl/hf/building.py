"""Builds a model on its mesh: read or made, sharded by tensor parallelism, given adapters, sharded by FSDP.

The order is not free. An adapter that is added before tensor parallelism is not sharded with its layer, and
one that is added after FSDP is never reduced over ranks. Tied parameters are sharded apart and tied again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from meshctl.hf import peft_api, transformers_api
from meshctl.hf.peft_api import Lora
from meshctl.hf.transformers_api import Sizes
from meshctl.hf.weights import reset_adapter


@dataclass(frozen=True)
class Build:
    """What is built, and where."""

    model: str | Mapping[str, Any]
    """A folder, a name of the hub, or the values of a config with `model_type`, for random weights."""
    head: str = "lm"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of the model's config."""
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype | None = None
    attention: str | None = None
    experts: str | None = None
    lora: Lora | None = None
    seed: int = 0
    sizes: Sizes = Sizes()
    mesh: TorchDeviceMesh | None = None
    """torch's mesh with the dims dp, fsdp and tp; None for one rank."""
    device: torch.device = torch.device("cpu")


def build(wanted: Build) -> nn.Module:
    """Returns the model, with the shards of this rank. All ranks call it together. Raises `ModelError`."""
    transformers_api.quiet()
    config = transformers_api.read_config(wanted.model, wanted.head, wanted.config)
    if isinstance(wanted.model, str):
        model = _loaded(wanted.model, config, wanted)
    else:
        model = transformers_api.new_model(
            config, wanted.head, wanted.dtype, wanted.attention, wanted.seed
        ).to(wanted.device)
        transformers_api.untie(model)
        distribute(model, wanted)
        transformers_api.tie(model)
    if wanted.experts:
        model.set_experts_implementation(wanted.experts)
    if wanted.lora:
        reset_adapter(model, wanted.seed)
    model.config.use_cache = False  # with a cache, transformers does not look for the borders of packed texts
    model.train()
    return model  # type: ignore[no-any-return]


def _loaded(folder: str, config: Any, wanted: Build) -> Any:
    renamed: dict[str, str] = {}
    if wanted.lora:
        outline = transformers_api.outline(config, wanted.head)
        peft_api.inject(outline, wanted.lora)
        renamed = peft_api.renamed_by(outline)
    return transformers_api.load_model(
        folder,
        config,
        wanted.head,
        wanted.dtype,
        wanted.attention,
        wanted.device,
        lambda model: distribute(model, wanted),
        renamed,
    )


def distribute(model: Any, wanted: Build) -> None:
    """Shards a model in place, in the order that is right for all layouts."""
    sizes = wanted.sizes
    if sizes.tp > 1:
        assert wanted.mesh is not None
        transformers_api.shard_by_tp(model, wanted.mesh, sizes)
    if wanted.lora:
        peft_api.inject(model, wanted.lora)
        if wanted.head == "score":
            model.score.requires_grad_(True)
    if sizes.data > 1 or wanted.compute_dtype is not None:
        assert wanted.mesh is not None
        transformers_api.shard_by_fsdp(model, wanted.mesh, sizes, wanted.compute_dtype)
