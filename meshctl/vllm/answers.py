"""The columns of sampled answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshctl.data.tokenizer import Tokenizer
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.vllm.options import Answer

IGNORED = -100
"""The label of a token that does not count in any loss."""


def with_answers(batch: Batch, answers: Sequence[Answer], tokenizer: Tokenizer) -> Batch:
    """Returns the samples of `batch`, one for each answer, with the columns of the answers.

    The prompts are the column `prompt_ids`. `vllm.Sampler.sample` lists the columns.
    """
    prompts = [row.cpu().long() for row in batch["prompt_ids"].rows()]
    tokens = [torch.tensor(one.tokens, dtype=torch.int64) for one in answers]
    logprobs = [torch.tensor(one.logprobs, dtype=torch.float32) for one in answers]
    columns: dict[str, Column] = {
        "input_ids": _joined(prompts, tokens),
        "labels": _joined([torch.full_like(one, IGNORED) for one in prompts], tokens),
        "sampled_logprobs": _joined([torch.zeros(len(one)) for one in prompts], logprobs),
        "response": tokenizer.decode_rows([one.tokens for one in answers], is_plain=True),
        "finish_reason": [one.finish_reason for one in answers],
    }
    kept = {name: column for name, column in batch.columns.items() if name not in columns}
    # The tokens come first, because the first ragged column determines the lengths of samples.
    return Batch({**columns, **kept}, ids=batch.known_ids, group_depth=batch.group_depth, most=batch.most)


def _joined(first: Sequence[Tensor], second: Sequence[Tensor]) -> Ragged:
    """Returns rows that consist of a row of `first` and a row of `second`."""
    rows = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    return Ragged.of(rows)
