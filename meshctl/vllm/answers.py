"""The columns of sampled answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meshctl.data.answers import answer_columns
from meshctl.data.tokenizer import Tokenizer
from meshctl.runtime.batch.batch import Batch
from meshctl.vllm.options import Answer


def with_answers(batch: Batch, answers: Sequence[Answer], tokenizer: Tokenizer) -> Batch:
    """Returns the samples of `batch`, one for each answer, with the columns of the answers.

    The prompts are the column `prompt_ids`. `vllm.Sampler.sample` lists the columns.
    """
    prompts = [row.cpu().long() for row in batch["prompt_ids"].rows()]
    tokens = [torch.tensor(one.tokens, dtype=torch.int64) for one in answers]
    logprobs = [torch.tensor(one.logprobs, dtype=torch.float32) for one in answers]
    columns = {
        **answer_columns(prompts, tokens, logprobs, [one.finish_reason for one in answers]),
        "response": tokenizer.decode_rows([one.tokens for one in answers], is_plain=True),
    }
    kept = {name: column for name, column in batch.columns.items() if name not in columns}
    # The tokens come first, because the first ragged column determines the lengths of samples.
    return Batch({**columns, **kept}, ids=batch.known_ids, group_depth=batch.group_depth, most=batch.most)
