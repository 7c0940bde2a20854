"""A few answers that a sampler and an actor score with the same weights, where samples arrive after the actor
has changed the weights that made them.

    step 3    the sampler holds its first answers
    step 5    the actor sends weights, and scores the held answers with them
    step 7    the sampler has these weights, and scores the same answers
              its samples, @version 5, @held_logprobs --> the actor compares both scores

The held answers travel with the first samples of a batch, as marks: columns that stages pass on and users do
not see. The actor knows them from an earlier batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from meshctl.runtime.batch.batch import MARK, Batch, Column, Ragged

MAX_ANSWERS = 4
"""The number of answers that each rank of a sampler holds."""
IDS, LABELS, LOGPROBS = (MARK + f"held_{name}" for name in ("ids", "labels", "logprobs"))
VERSIONS_KEPT = 64
"""The number of versions of the weights whose scores an actor keeps."""
Score = Callable[[Batch], Ragged]
"""A function of the columns `input_ids` and `labels`. It returns the log-probability of each label, and 0
where the label is -100."""
Key = tuple[int, ...]
"""The tokens of a text, followed by its labels."""


class HeldBySampler:
    """The answers that a rank of a sampler holds."""

    def __init__(self) -> None:
        self._texts: Batch | None = None
        self._scored: tuple[int, Ragged] | None = None

    def marks(self, answers: Batch, version: int | None, step: int, score: Score) -> dict[str, Column]:
        """Returns the marks of `answers`, which weights of `version` made in `step`; none if no step has
        changed the weights since. The first call with answers holds some of them."""
        if version is None or version >= step - 1:
            return {}
        if self._texts is None and len(answers):
            first = answers.between(0, min(MAX_ANSWERS, len(answers)))
            self._texts = first.select("input_ids", "labels").clone()
        if self._texts is None:
            return self._columns(answers, answers.select("input_ids", "labels"), answers["sampled_logprobs"])
        if self._scored is None or self._scored[0] != version:
            self._scored = version, score(self._texts)
        return self._columns(answers, self._texts, self._scored[1])

    def _columns(self, answers: Batch, texts: Batch, logprobs: Column) -> dict[str, Column]:
        found = {IDS: texts["input_ids"], LABELS: texts["labels"], LOGPROBS: logprobs}
        return {name: _of_first(column, len(answers)) for name, column in found.items()}


def _of_first(column: Column, rows: int) -> Ragged:
    """Returns a ragged column of `rows` rows: those of `column`, and then empty ones."""
    assert isinstance(column, Ragged)
    own = column.rows()[:rows]
    return Ragged.of([*own, *[column.values[:0]] * (rows - len(own))]) if rows else column


class HeldByActor:
    """The held answers that a rank of an actor has received, and their scores with the weights that it has
    sent."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether the samples of a batch had the marks. This is the same on all ranks."""
        self._texts: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self._scores: dict[int, dict[Key, torch.Tensor]] = {}
        """Version of the weights -> the score of each text."""

    def sent(self, step: int, score: Score) -> None:
        """Scores the held answers with the weights that are sent in `step`. All ranks call this together."""
        if not self.is_on:
            return
        ids, labels = zip(*self._texts.values(), strict=True) if self._texts else ((), ())
        empty = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        columns = (Ragged.of(list(one)) if one else empty for one in (ids, labels))
        texts = Batch(dict(zip(("input_ids", "labels"), columns, strict=True)), ids=torch.arange(len(ids)))
        self._scores.pop(step, None)
        self._scores[step] = dict(zip(self._texts, score(texts).rows(), strict=True))
        if len(self._scores) > VERSIONS_KEPT:
            del self._scores[next(iter(self._scores))]

    def differences(self, batch: Batch, versions: torch.Tensor) -> torch.Tensor:
        """Returns float64 `[tokens]`: the differences between the scores of the sampler and those of this
        model, for the labels of the held answers of a batch. `versions` are those of its samples. New answers
        are held from now on."""
        if IDS not in batch.columns:
            return torch.zeros(0, dtype=torch.float64)
        self.is_on, found = True, [torch.zeros(0, dtype=torch.float64)]
        columns = [batch.columns[name] for name in (IDS, LABELS, LOGPROBS)]
        rows = zip(*(column.rows() for column in columns if isinstance(column, Ragged)), strict=True)
        for (ids, labels, logprobs), version in zip(rows, versions.tolist(), strict=True):
            if not len(ids):
                continue
            key = (*ids.tolist(), *labels.tolist())
            own = self._scores.get(version, {}).get(key)
            if own is not None:
                is_label = labels[1:] != -100
                found.append((own.double() - logprobs.double()).abs()[1:][is_label])
            self._texts.setdefault(key, (ids.clone(), labels.clone()))
        return torch.cat(found)
