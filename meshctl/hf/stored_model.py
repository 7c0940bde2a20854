"""The base class of components with a model whose weights are sent, received and exported under the names of
the model's files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from meshctl.hf import peft_api, weights
from meshctl.hf.export import FILE_BYTES, export
from meshctl.hf.parity import ParityCheck
from meshctl.hf.pipeline.stage_weights import outlines_of_all, tensors_of_all
from meshctl.hf.stored_weights import load_stored, stored_weights
from meshctl.hf.transformers_api import DiskFormat, outline
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.component import Component, endpoint


class StoredModel(Component):
    """Sends, receives and exports the weights of `module`."""

    head: str
    dtype: torch.dtype
    _parity: ParityCheck

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The model with the shards of this rank."""

    @abstractmethod
    def _label_logprobs(self, texts: Batch) -> Ragged:
        """Returns the log-probability of each label of `texts`. All ranks call this together."""

    @cached_property
    def _disk(self) -> DiskFormat:
        return DiskFormat(self.module.config, self.head, self.dtype)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the shards of the weights, as the files of the model have them: one weight for
        each expert, where transformers fuses experts in memory. The adapter, if there is one, is merged into
        the weights. All ranks iterate together."""
        self._parity.sent(self.step, self._label_logprobs)
        return stored_weights(self._disk, weights.merged_weights(self.module))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the weights. The names are those of `weights`. Each tensor is
        whole or the shard of this rank. Raises `ModelError` for an unknown name or another shape."""
        own = weights.held(self.module).items()
        load_stored(self._disk, {peft_api.plain_name(name): tensor for name, tensor in own}, stream)

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the shards of the adapter's parameters. The names are those in the files of
        peft."""
        self._parity.sent(self.step, self._label_logprobs)
        return weights.adapter_of(self.module)

    def load_adapter(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the adapter's parameters. Each tensor is whole or the shard of
        this rank. Raises `ModelError` for an unknown name or another shape."""
        weights.copy_named(dict(weights.adapter_of(self.module)), stream)

    @endpoint(collect="none")
    def export(self, folder: str | Path | None = None, file_bytes: int = FILE_BYTES) -> None:
        """Writes the config and the weights, with the adapter merged, to a folder that `from_pretrained` can
        load.

        The default of `folder` is `exports/step-N` in the run directory, or `exports/NAME/step-N` if a run
        exports several components. All ranks call this method together,
        and each of them writes a part of the files. A file has at most `file_bytes`, or one tensor. No rank
        holds more than one file and one whole tensor.
        """
        path = Path(folder) if folder else self.run_dir / self.place.exports / f"step-{self.step}"
        shapes, tensors = weights.outlines(self.module), weights.merged_weights(self.module)
        if self.mesh.size("pp") > 1:
            names = [*weights.outlines(outline(self.module.config, self.head))]
            pp = self.collective("pp")
            shapes, owners = outlines_of_all(shapes, names, pp)
            tensors = tensors_of_all(tensors, shapes, owners, pp)
        export(self._disk, shapes, tensors, path, self.collective("world"), file_bytes)
