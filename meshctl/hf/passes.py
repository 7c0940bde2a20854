"""The passes of micro-batches through a model that each rank can run whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from meshctl.hf.router_loss import RouterLoss
from meshctl.hf.texts import Texts
from meshctl.hf.training import Trainer
from meshctl.losses import LossSum
from meshctl.runtime.batch.batch import Batch

T = TypeVar("T")


class Passes:
    """Runs micro-batches one after another. `pipeline.PipelinePasses` runs them through pipeline stages."""

    def __init__(self, routers: RouterLoss) -> None:
        self._routers = routers

    def continued(self, texts: Texts) -> Texts:
        """Returns the texts of a forward pass, as the model gets them."""
        return texts

    def each(
        self, parts: Iterable[Batch], prefixes: tuple[str, ...], compute: Callable[[Batch], T]
    ) -> list[T]:
        """Returns the results of `compute`, which runs the model once, for each micro-batch. It is called
        without gradients. `prefixes` are those of the columns with the texts that it uses."""
        return [compute(part) for part in parts]

    def train(
        self,
        parts: Sequence[Batch],
        prefixes: tuple[str, ...],
        loss: Callable[[Batch], LossSum],
        trainer: Trainer,
    ) -> list[Tensor]:
        """Accumulates the gradients of all micro-batches. Returns for each whether its loss is finite."""
        finite = []
        for number, found in enumerate(self._routers.added(parts, loss), 1):
            finite.append(torch.isfinite(found.total.detach()))
            trainer.backward(found, number == len(parts))
        return finite
