"""Micro-batches, of which all data ranks have the same number, and their passes through a model that each
rank can run whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from meshctl.hf.options import ModelError
from meshctl.hf.router_loss import RouterLoss
from meshctl.hf.texts import Texts
from meshctl.hf.training import Trainer
from meshctl.losses import LossSum
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective

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


def by_tokens(batch: Batch, limit: int, prefixes: tuple[str, ...], data: Collective) -> Iterator[Batch]:
    """Yields the micro-batches of a batch, in order. Each has at most `limit` tokens, or one longer sample.

    The tokens are those of the columns `input_ids` with each of `prefixes`. Ranks with fewer micro-batches
    yield empty ones at the end. The function is a collective operation over `data`: all data ranks call it.
    Raises `ModelError` if an `input_ids` column is not ragged.
    """
    total = torch.zeros(len(batch), dtype=torch.int64)
    for prefix in prefixes:
        column = batch[f"{prefix}input_ids"]
        if not isinstance(column, Ragged):
            raise ModelError(f"`micro_batch_tokens` needs a ragged column `{prefix}input_ids`")
        total += column.lengths.cpu()
    cuts = list(_cuts(total.tolist(), limit))
    count = int(data.all_reduce(torch.tensor(len(cuts), device=data.device), "max"))
    for start, stop in cuts:
        yield batch.between(start, stop)
    for _ in range(count - len(cuts)):
        yield batch.between(len(batch), len(batch))


def _cuts(lengths: list[int], limit: int) -> Iterator[tuple[int, int]]:
    start, tokens = 0, 0
    for row, length in enumerate(lengths):
        if tokens and tokens + length > limit:
            yield start, row
            start, tokens = row, 0
        tokens += length
    if lengths:
        yield start, len(lengths)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Returns a context in which a model computes without gradients and dropout.

    After a forward pass without a backward pass, FSDP keeps some parameters unsharded. The end of the context
    shards these parameters again, and sets the model to its earlier mode.
    """
    is_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(is_training)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
