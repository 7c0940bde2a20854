"""Prompts that a model cannot continue."""

from __future__ import annotations

import pytest
import torch

from meshctl import Batch
from meshctl.runtime.batch.batch import Ragged
from meshctl.runtime.component import ComponentError
from meshctl.sampling.answers import PromptLimits


def prompts(*lengths: int) -> Batch:
    rows = Ragged.of([torch.zeros(length, dtype=torch.int64) for length in lengths])
    return Batch({"prompt_ids": rows}, ids=torch.arange(40, 40 + len(lengths))[:, None])


def limits(positions: int) -> PromptLimits:
    return PromptLimits(256, positions, 4, ComponentError)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (prompts(8, 9000), r"samples 41 \(up to 9000 tokens\) and answers of 4 tokens exceed"),
        (prompts(5, 0), r"samples 41 \(up to 0 tokens\) have no token"),
        (Batch({"prompt_ids": Ragged.of([torch.tensor([256])])}), "outside the model's vocabulary of 256"),
        (Batch({"prompt_ids": torch.ones(2, 3)}), "needs prompts, a row of tokens for each sample"),
        (Batch({"input_ids": Ragged.of([torch.tensor([1])])}), "needs prompts, a row of tokens"),
    ],
)
def test_a_prompt_that_does_not_fit_is_an_error(batch: Batch, message: str) -> None:
    with pytest.raises(ComponentError, match=message):
        limits(8192).prompts_of(batch)
