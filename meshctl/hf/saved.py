"""Exports a model from a checkpoint of a run, in one process on the CPU, without the processes of the run.

The checkpoint has the trained weights under the names of the whole model, whatever the layout of the run was.
A model that is trained as a whole is read and written one tensor at a time. For another model, the base model
is built, and the trained weights are copied into it. Only arguments of `hf.Model` are used, and no code of
the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class Saved:
    """The state of a component in a checkpoint."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads the names of the tensors. Raises `CheckpointError` if they cannot be read."""
        self._path, self._name = folder / name, name
        entries = checkpoint.read_metadata(self._path).state_dict_metadata
        self._entries = {entry.removeprefix(PREFIX): entry for entry in entries if entry.startswith(PREFIX)}

    @property
    def names(self) -> list[str]:
        """The names of the trained weights, as the whole model has them."""
        return [*self._entries]

    def read(self, name: str, like: Tensor) -> Tensor:
        """Returns a weight of the shape and dtype of `like`. Raises `CheckpointError` if it is damaged."""
        found = torch.empty(like.shape, dtype=like.dtype)
        checkpoint.read_dcp(self._path, self._name, {self._entries[name]: found})
        return found


def has_weights(folder: Path, name: str) -> bool:
    """Returns whether the state of a component in a checkpoint is that of an `hf.Model`. Raises
    `CheckpointError` if it cannot be read."""
    return bool(Saved(folder, name).names)


def export_saved(folder: Path, name: str, args: Mapping[str, Any], to: Path, adapter: bool) -> None:
    """Writes the model of a component in the checkpoint `folder` to `to`, with its adapter merged, or
    with `adapter` the adapter alone.

    `args` are the arguments of the component. Raises `ModelError` or `CheckpointError` if the model cannot be
    read or written.
    """
    transformers_api.quiet()
    made = Model(**{key: args[key] for key in KEPT if key in args}, export={"adapter": adapter})
    saved = Saved(folder, name)
    if made.lora or set(_outline(made)) - set(saved.names):
        made.module.requires_grad_(False)
        for key, parameter in weights.parameters(made.module):
            if key in saved.names:
                parameter.copy_(saved.read(key, parameter))
        made.export(to)
        return
    shapes, disk = _outline(made), _disk(made)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for key, shape in shapes.items():
            yield key, saved.read(key, shape)

    weights.export(disk, shapes, tensors(), to, made.collective("world"))
    copy_companions(made.model, made.export_tokenizer, made.config, to, made.extended_tokenizer)


def _config(made: Model) -> Any:
    added = made.extended_tokenizer.added if made.extended_tokenizer else range(0)
    return building.read_config(made.model, made.head, made.config, added)


def _outline(made: Model) -> dict[str, Tensor]:
    """Returns name -> tensor of torch's `meta` device for the weights of the whole model."""
    return dict(weights.outlines(transformers_api.outline(_config(made), made.head, dtype=made.dtype)))


def _disk(made: Model) -> DiskFormat:
    config = _config(made)
    return DiskFormat(config, made.head, made.dtype, getattr(config, "use_cache", True))
