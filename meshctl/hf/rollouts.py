"""The columns of answers to prompts.

input_ids         ragged int64     prompt and answer
labels            ragged int64     the tokens of the answer, and -100 in the prompt
sampled_logprobs  ragged           the log-probability of each token of the answer, and 0 in the prompt
finish_reason     list of texts    `stop`, or `length` for an answer of the maximum length
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshctl.hf.decoding import Answers
from meshctl.hf.texts import IGNORED
from meshctl.runtime.batch.batch import Column, Ragged


class Rollouts:
    """The answers of a batch. They are added in any order."""

    def __init__(self, prompts: Sequence[Tensor], dtype: torch.dtype) -> None:
        """`prompts` are the prompts of all answers, int64 `[tokens]` each. `dtype` is that of the
        log-probabilities."""
        self._prompts, self._dtype = prompts, dtype
        self._tokens = [torch.empty(0, dtype=torch.int64)] * len(prompts)
        self._logprobs = [torch.empty(0, dtype=dtype)] * len(prompts)
        self.finish_reasons = [""] * len(prompts)

    def add(self, numbers: Sequence[int], answers: Answers) -> None:
        """Sets the answers with these numbers."""
        for row, number in enumerate(numbers):
            length = answers.lengths[row]
            self._tokens[number] = answers.tokens[row, :length]
            self._logprobs[number] = answers.logprobs[row, :length].to(self._dtype)
            self.finish_reasons[number] = "stop" if answers.has_ended[row] else "length"

    @property
    def answers(self) -> list[list[int]]:
        """The tokens of each answer."""
        return [tokens.tolist() for tokens in self._tokens]

    def metrics(self) -> dict[str, float]:
        """Returns the mean number of tokens of an answer, as `length`, and the fraction of answers that have
        the maximum number, as `cut`. There is at least one answer."""
        count = len(self._tokens)
        length = sum(map(len, self._tokens)) / count
        return {"length": length, "cut": self.finish_reasons.count("length") / count}

    def columns(self) -> dict[str, Column]:
        ignored = [torch.full_like(prompt, IGNORED) for prompt in self._prompts]
        zeros = [torch.zeros(len(prompt), dtype=self._dtype) for prompt in self._prompts]
        return {
            "input_ids": _joined(self._prompts, self._tokens, torch.int64),
            "labels": _joined(ignored, self._tokens, torch.int64),
            "sampled_logprobs": _joined(zeros, self._logprobs, self._dtype),
            "finish_reason": self.finish_reasons,
        }


def _joined(first: Sequence[Tensor], second: Sequence[Tensor], dtype: torch.dtype) -> Ragged:
    """Returns rows that consist of a row of `first` and a row of `second`."""
    pairs = list(zip(first, second, strict=True))
    lengths = torch.tensor([0, *(len(one) + len(other) for one, other in pairs)])
    values = torch.cat([part for pair in pairs for part in pair]) if pairs else torch.empty(0, dtype=dtype)
    return Ragged(values, lengths.cumsum(0))
