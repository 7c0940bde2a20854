"""The warning about prompts that are much longer than the others of their batch."""

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


def limits(positions: int | None = None) -> PromptLimits:
    return PromptLimits(256, positions, 4, ComponentError)


@pytest.mark.parametrize(
    ("lengths", "which"),
    [
        ((8, 9000, 10), "samples 41 (up to 9000 tokens) are long, the median of the others is 9; the answers"),
        ((9000, 12, 5000, 8, 8, 8), "samples 40, 42 (up to 9000 tokens) are long, the median of the others is 8"),
        ((9000,), "samples 40 (up to 9000 tokens) are long; the answers of this batch take longer"),
        ((8000, 9000, 8500), None),
        ((8, 4096), None),
        ((600, 4200), None),
    ],
)  # fmt: skip
def test_long_prompts_are_named_before_answers_are_generated(
    lengths: tuple[int, ...], which: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    limit = limits()
    assert [len(one) for one in limit.prompts_of(prompts(*lengths))] == list(lengths)
    assert len(caplog.records) == (which is not None)
    assert which is None or f"`prompt_ids`: {which}" in caplog.text
    limit.prompts_of(prompts(*lengths))
    assert len(caplog.records) == (which is not None)  # once in a run


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
def test_a_prompt_that_does_not_fit_is_an_error(
    batch: Batch, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ComponentError, match=message):
        limits(8192).prompts_of(batch)
    assert not caplog.records
