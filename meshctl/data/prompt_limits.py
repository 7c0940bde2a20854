"""The prompts of a batch, checked against the model that continues them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import field
from statistics import median

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.component import ComponentError

COLUMN = "prompt_ids"
LONG_TOKENS = 4096
LONG_RATIO = 8
"""A prompt that is longer than `LONG_TOKENS` and than this multiple of the median of the others is reported:
its batch takes much longer than usual, and a slow model shows nothing meanwhile."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptLimits:
    """The prompts that a model can continue."""

    vocabulary: int
    positions: int | None
    """The positions of the model for a prompt and its answer; None if there is no limit."""
    max_new_tokens: int
    error: type[ComponentError]
    """The class of the errors about prompts."""
    _reported: list[str] = field(default_factory=list)
    """The warning about long prompts, once there was one."""

    def prompts_of(self, batch: Batch) -> list[Tensor]:
        """Returns the tokens of each prompt, int64 `[tokens]` in CPU memory. Raises `error` without prompts,
        and for prompts that do not fit, with the ids of their samples. Warns once of prompts that are much
        longer than the others."""
        column = batch[COLUMN] if COLUMN in batch else None  # noqa: SIM401 - a batch has no `get`
        if not isinstance(column, Ragged):
            raise self.error(f"a sampler needs prompts, a row of tokens for each sample in `{COLUMN}`")
        prompts = [row.cpu() for row in column.rows()]
        self._check(batch, prompts, self._is_too_long, self._too_long)
        self._check(batch, prompts, lambda prompt: not len(prompt), "have no token")
        vocabulary = f"have tokens outside the model's vocabulary of {self.vocabulary}"
        self._check(batch, prompts, self._is_unknown, vocabulary)
        self._warn_of_long(batch, prompts)
        return prompts

    def _warn_of_long(self, batch: Batch, prompts: list[Tensor]) -> None:
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths, default=0)
        if longest <= LONG_TOKENS or self._reported:
            return
        usual = median(sorted(lengths)[:-1] or [0])
        rows = [row for row, length in enumerate(lengths) if length > max(LONG_TOKENS, LONG_RATIO * usual)]
        if rows:
            which = f"samples {shown_ids(batch.ids[rows].tolist())} (up to {longest} tokens) are long"
            others = f", the median of the others is {usual:g}" if usual else ""
            self._reported.append(
                f"`{COLUMN}`: {which}{others}; the answers of this batch take longer; `max_prompt_tokens` "
                "and `over_length: drop` at the source of the prompts leave such prompts out"
            )
            log.warning("%s", self._reported[-1])

    def _check(
        self, batch: Batch, prompts: list[Tensor], is_wrong: Callable[[Tensor], bool], problem: str
    ) -> None:
        if rows := [row for row, prompt in enumerate(prompts) if is_wrong(prompt)]:
            longest = max(len(prompts[row]) for row in rows)
            shown = shown_ids(batch.ids[rows].tolist())
            raise self.error(f"`{COLUMN}`: samples {shown} (up to {longest} tokens) {problem}")

    def _is_too_long(self, prompt: Tensor) -> bool:
        return self.positions is not None and len(prompt) + self.max_new_tokens > self.positions

    @property
    def _too_long(self) -> str:
        left = (self.positions or 0) - self.max_new_tokens
        return (
            f"and answers of {self.max_new_tokens} tokens exceed the model's {self.positions} positions; "
            f"set `max_prompt_tokens: {left}` and `over_length: drop` at the source of the prompts"
        )

    def _is_unknown(self, prompt: Tensor) -> bool:
        return int(prompt.min()) < 0 or int(prompt.max()) >= self.vocabulary
