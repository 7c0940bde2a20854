"""The answers of a batch, which are generated in any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshctl.data.answers import answer_columns
from meshctl.hf.decoding import Answers
from meshctl.runtime.batch.batch import Column


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
        """Returns the columns of `data.answers`."""
        return answer_columns(self._prompts, self._tokens, self._logprobs, self.finish_reasons, self._dtype)
