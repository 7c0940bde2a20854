"""The prompts of a batch, checked against the model that continues them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.component import ComponentError

COLUMN = "prompt_ids"


@dataclass(frozen=True)
class PromptLimits:
    """The prompts that a model can continue."""

    vocabulary: int
    positions: int | None
    """The positions of the model for a prompt and its answer; None if there is no limit."""
    max_new_tokens: int
    error: type[ComponentError]
    """The class of the errors about prompts."""

    def prompts_of(self, batch: Batch) -> list[Tensor]:
        """Returns the tokens of each prompt, int64 `[tokens]` in CPU memory. Raises `error` without prompts,
        and for prompts that do not fit, with the ids of their samples."""
        column = batch[COLUMN] if COLUMN in batch else None  # noqa: SIM401 - a batch has no `get`
        if not isinstance(column, Ragged):
            raise self.error(f"a sampler needs prompts, a row of tokens for each sample in `{COLUMN}`")
        prompts = [row.cpu() for row in column.rows()]
        self._check(batch, prompts, self._is_too_long, self._too_long)
        self._check(batch, prompts, lambda prompt: not len(prompt), "have no token")
        vocabulary = f"have tokens outside the model's vocabulary of {self.vocabulary}"
        self._check(batch, prompts, self._is_unknown, vocabulary)
        return prompts

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
