"""The columns of a batch that a model returns, one function for each endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from meshctl.hf.outputs import Outputs
from meshctl.runtime.batch.batch import Column

OfTexts = Callable[[Outputs, str], Iterator[tuple[str, Column]]]
"""A function of a model's outputs and the prefix of the texts' columns. It yields the name and the values of
each column."""


def logprobs(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    if prefix:
        yield "logprobs", outputs.sequence_logprobs.cpu()
        return
    first = outputs.token_logprobs.new_zeros(outputs.texts.samples, 1)
    yield "logprobs", outputs.texts.ragged(torch.cat([first, outputs.token_logprobs], 1))


def reference(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield from logprobs(outputs, prefix)
    if not prefix and outputs.texts.position_ids is None:
        yield "sequence_logprobs", outputs.sequence_logprobs.cpu()


def values(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "values", outputs.texts.ragged(outputs.values)


def scores(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "scores", outputs.scores.cpu()
