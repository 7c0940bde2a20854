"""Exports a model from a checkpoint of a run, in one process on the CPU, without the processes of the run.

The checkpoint has the trained weights under the names of the whole model, whatever the layout of the run was.
A model that is trained as a whole is read and written one tensor at a time. For another model, the base model
is built, and the trained weights are copied into it. Only arguments of `hf.Model` are used, and no code of
the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshctl.hf import building, transformers_api, weights
from meshctl.hf.companions import copy_companions
from meshctl.hf.model import Model
from meshctl.hf.transformers_api import DiskFormat
from meshctl.runtime import checkpoint

KEPT = (
    "model",
    "head",
    "num_labels",
    "config",
    "tokenizer",
    "tokens",
    "dtype",
    "experts",
    "lora",
    "freeze",
    "train",
)
"""The arguments of `hf.Model` that decide what an export has."""
PREFIX = "weights."
"""The beginning of the names of weights in the state of `hf.Model`."""


def trained_weights(folder: Path, name: str) -> dict[str, str]:
    """Returns the trained weights of a component in a checkpoint: name in the whole model -> name in the
    checkpoint. There are none for another class than `hf.Model`. Raises `CheckpointError` if they cannot be
    read."""
    entries = checkpoint.read_metadata(folder / name).state_dict_metadata
    return {entry.removeprefix(PREFIX): entry for entry in entries if entry.startswith(PREFIX)}


def export_saved(folder: Path, name: str, args: Mapping[str, Any], to: Path, adapter: bool) -> None:
    """Writes the model of a component in the checkpoint `folder` to `to`, with its adapter merged, or
    with `adapter` the adapter alone.

    `args` are the arguments of the component. Raises `ModelError` or `CheckpointError` if the model cannot be
    read or written.
    """
    transformers_api.quiet()
    made = Model(**{key: args[key] for key in KEPT if key in args}, export={"adapter": adapter})
    trained = trained_weights(folder, name)

    def read(key: str, like: Tensor) -> Tensor:
        found = torch.empty(like.shape, dtype=like.dtype)
        checkpoint.read_dcp(folder / name, name, {trained[key]: found})
        return found

    added = made.extended_tokenizer.added if made.extended_tokenizer else range(0)
    config = building.read_config(made.model, made.head, made.config, added)
    shapes = weights.outlines(transformers_api.outline(config, made.head, dtype=made.dtype))
    if made.lora or not shapes.keys() <= trained.keys():
        made.module.requires_grad_(False)
        for key, parameter in weights.parameters(made.module):
            if key in trained:
                parameter.copy_(read(key, parameter))
        made.export(to)
        return
    disk = DiskFormat(config, made.head, made.dtype, getattr(config, "use_cache", True))
    tensors = ((key, read(key, shape)) for key, shape in shapes.items())
    weights.export(disk, shapes, tensors, to, made.collective("world"))
    copy_companions(made.model, made.export_tokenizer, made.config, to, made.extended_tokenizer)
