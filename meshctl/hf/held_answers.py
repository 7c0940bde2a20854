"""The held answers of `meshctl.data.held_answers` in an actor, and their scores with the weights that it has
sent."""

from __future__ import annotations

import torch

from meshctl.data.held_answers import IDS, LABELS, LOGPROBS, Score
from meshctl.runtime.batch.batch import Batch, Ragged

VERSIONS_KEPT = 64
"""The number of versions of the weights whose scores an actor keeps."""
Key = tuple[int, ...]
"""The tokens of a text, followed by its labels."""


class HeldByActor:
    """The held answers that a rank of an actor has received, and their scores with the weights that it has
    sent."""

    def __init__(self) -> None:
        self.is_on = False
        """True if the samples of a batch had the marks. This is the same on all ranks."""
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
