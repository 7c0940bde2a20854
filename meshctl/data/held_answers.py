"""A few answers that a sampler scores again after each sync, where samples arrive after the actor has changed
the weights that made them. `meshctl.hf.held_answers` compares these scores with the actor's.

    step 3    the sampler holds its first answers
    step 5    the actor sends weights, and scores the held answers with them
    step 7    the sampler has these weights, and scores the same answers
              its samples, @version 5, @held_logprobs --> the actor compares both scores

The held answers travel with the first samples of a batch, as marks: columns that stages pass on and users do
not see. The actor knows them from an earlier batch.
"""

from __future__ import annotations

from collections.abc import Callable

from meshctl.runtime.batch.batch import MARK, Batch, Column, Ragged

MAX_ANSWERS = 4
"""The number of answers that each rank of a sampler holds."""
MAX_TOKENS = 2048
"""The maximum length of a held text. It bounds the memory for the probabilities of all tokens."""
IDS, LABELS, LOGPROBS = (MARK + f"held_{name}" for name in ("ids", "labels", "logprobs"))
Score = Callable[[Batch], Ragged]
"""A function of the columns `input_ids` and `labels`. It returns the log-probability of each label, and 0
where the label is -100."""


class HeldBySampler:
    """The answers that a rank of a sampler holds."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        """`max_tokens` is the maximum length of a text that can be scored. Longer texts are truncated."""
        self._max_tokens = min(max_tokens, MAX_TOKENS)
        self._texts: Batch | None = None
        self._scored: tuple[int, Ragged] | None = None

    def marks(self, answers: Batch, version: int | None, step: int, score: Score) -> dict[str, Column]:
        """Returns the marks of `answers`, which weights of `version` made in `step`; none if no step has
        changed the weights since. The first call with answers holds some of them."""
        if version is None or version >= step - 1:
            return {}
        if self._texts is None and len(answers):
            self._texts = self._first(answers)
        if self._texts is None:
            return self._columns(answers, answers.select("input_ids", "labels"), answers["sampled_logprobs"])
        if self._scored is None or self._scored[0] != version:
            self._scored = version, score(self._texts)
        return self._columns(answers, self._texts, self._scored[1])

    def _first(self, answers: Batch) -> Batch:
        first = answers.between(0, min(MAX_ANSWERS, len(answers)))
        columns = {name: first[name].rows() for name in ("input_ids", "labels")}
        return Batch(
            {name: Ragged.of([row[: self._max_tokens] for row in rows]) for name, rows in columns.items()}
        )

    def _columns(self, answers: Batch, texts: Batch, logprobs: Column) -> dict[str, Column]:
        found = {IDS: texts["input_ids"], LABELS: texts["labels"], LOGPROBS: logprobs}
        return {name: _of_first(column, len(answers)) for name, column in found.items()}


def _of_first(column: Column, rows: int) -> Ragged:
    """Returns a ragged column of `rows` rows: those of `column`, and then empty ones."""
    assert isinstance(column, Ragged)
    own = column.rows()[:rows]
    return Ragged.of([*own, *[column.values[:0]] * (rows - len(own))]) if rows else column
