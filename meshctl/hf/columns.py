"""The columns of a batch that a model returns, one function for each endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from meshctl.hf.outputs import Outputs
from meshctl.hf.token_columns import as_column
from meshctl.runtime.batch.batch import Batch, Column

OfTexts = Callable[[Outputs, str], Iterator[tuple[str, Column]]]
"""A function of a model's outputs and the prefix of the texts' columns. It yields the name and the values of
each column."""


def logprobs(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    if prefix:
        yield "logprobs", outputs.sequence_logprobs.cpu()
        return
    yield "logprobs", as_column(outputs.token_logprobs, outputs.texts)


def reference(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield from logprobs(outputs, prefix)
    if not prefix and outputs.texts.position_ids is None:
        yield "sequence_logprobs", outputs.sequence_logprobs.cpu()


def teacher(outputs: Outputs, prefix: str, top: int | None) -> Iterator[tuple[str, Column]]:
    """Yields the columns of `logprobs`, and those of the `top` likeliest tokens at each label."""
    yield from logprobs(outputs, prefix)
    if top is None or prefix:
        return
    ids, values_of_ids = outputs.likeliest(top)
    yield "top_ids", as_column(ids.to(torch.int32), outputs.texts)
    yield "top_logprobs", as_column(values_of_ids, outputs.texts)


def values(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "values", outputs.texts.ragged(outputs.values)


def scores(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "scores", outputs.scores.cpu()


def renamed(prefix: str, batch: Batch) -> Batch:
    """Returns a batch whose columns have `prefix` before their names."""
    named = {f"{prefix}{name}": batch[name] for name in batch.names}
    return Batch(named, ids=batch.known_ids, group_depth=batch.group_depth)
