"""The columns of answers to prompts, as samplers return them.

input_ids         ragged int64     prompt and answer
labels            ragged int64     the tokens of the answer, and -100 in the prompt
sampled_logprobs  ragged           the log-probability of each token of the answer, and 0 in the prompt
finish_reason     list of texts    `stop`, or `length` for an answer of the maximum length
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Column, Ragged


def answer_columns(
    prompts: Sequence[Tensor],
    tokens: Sequence[Tensor],
    logprobs: Sequence[Tensor],
    finish_reasons: list[str],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Column]:
    """Returns the columns. `prompts` and `tokens` are int64 `[tokens]` for each answer, and `logprobs` have
    the lengths of `tokens`. `dtype` is that of the log-probabilities."""
    ignored = [torch.full_like(prompt, IGNORED) for prompt in prompts]
    zeros = [torch.zeros(len(prompt), dtype=dtype) for prompt in prompts]
    return {
        "input_ids": _joined(prompts, tokens, torch.int64),
        "labels": _joined(ignored, tokens, torch.int64),
        "sampled_logprobs": _joined(zeros, logprobs, dtype),
        "finish_reason": finish_reasons,
    }


def _joined(first: Sequence[Tensor], second: Sequence[Tensor], dtype: torch.dtype) -> Ragged:
    """Returns rows that consist of a row of `first` and a row of `second`."""
    pairs = list(zip(first, second, strict=True))
    lengths = torch.tensor([0, *(len(one) + len(other) for one, other in pairs)])
    values = torch.cat([part for pair in pairs for part in pair]) if pairs else torch.empty(0, dtype=dtype)
    return Ragged(values, lengths.cumsum(0))
