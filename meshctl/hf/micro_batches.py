"""Divides a batch into micro-batches. All data ranks have the same number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from meshctl.hf.errors import ModelError
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective


def by_tokens(batch: Batch, limit: int, prefixes: tuple[str, ...], data: Collective) -> Iterator[Batch]:
    """Yields the micro-batches of a batch, in order. Each has at most `limit` tokens, or one longer sample.

    The tokens are those of the columns `input_ids` with each of `prefixes`. Ranks with fewer micro-batches
    yield empty ones at the end. The function is a collective operation over `data`: all data ranks call it.
    Raises `ModelError` if an `input_ids` column is not ragged.
    """
    cuts = list(_cuts(_tokens_of(batch, prefixes), limit))
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


def _tokens_of(batch: Batch, prefixes: tuple[str, ...]) -> list[int]:
    total = torch.zeros(len(batch), dtype=torch.int64)
    for prefix in prefixes:
        column = batch[f"{prefix}input_ids"]
        if not isinstance(column, Ragged):
            raise ModelError(f"`micro_batch_tokens` needs a ragged column `{prefix}input_ids`")
        total += column.lengths.cpu()
    return [int(length) for length in total]
