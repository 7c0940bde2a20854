"""Compares the log-probabilities of sampled tokens, as the sampler reports them, with those of the model that
sent the sampler its weights.

    actor.weights() in step 7  --sync-->  sampler        `SentWeights` notes 7 -> the number of updates so far
    sampler.sample             --@version 7-->  actor.update

If no update has changed the weights since then, the first forward pass of the update computes the same
log-probabilities as the sampler, up to rounding. Otherwise, the scores of a few held answers are compared
(`meshctl.sampling.answers`). A larger difference means that the sampler is not the actor: other weights,
another temperature, another template, or a kernel that is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from meshctl.hf.options import ModelError
from meshctl.hf.outputs import Outputs
from meshctl.hf.texts import aligned
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective
from meshctl.sampling.answers import HELD_VERSION, IDS, LABELS, LOGPROBS, VERSION, VERSIONS, Score

MODES = ("warn", "error", "off")
MAX_MEAN_NATS = 0.1
"""The largest mean difference that is not reported."""
STEPS_KEPT = 1000
UNKNOWN = -1
"""The lag of tokens whose weights this model has not sent."""
VERSIONS_KEPT = 64
"""The number of versions of the weights whose scores an actor keeps."""
Value = TypeVar("Value")
Key = tuple[int, ...]
"""The tokens of a text, followed by its labels."""
log = logging.getLogger(__name__)


class SentWeights:
    """The weights that a model has sent, and their scores of the held answers that this rank has received."""

    def __init__(self) -> None:
        self.is_on = False
        """True if the samples of a batch had the marks of held answers. This is the same on all ranks."""
        self._changes = 0
        self._changes_at: dict[int, int] = {}
        """Step -> the number of updates before the last send of weights in this step."""
        self._texts: dict[Key, tuple[Tensor, Tensor]] = {}
        self._scores: dict[int, dict[Key, Tensor]] = {}
        """Step -> the score of each text."""

    def changed(self) -> None:
        """Notes that an update has changed the weights."""
        self._changes += 1

    def sent(self, step: int, score: Score | None) -> None:
        """Notes that the weights are sent in `step`, and scores the held answers with them, if `score` is
        given. All ranks call this together."""
        _put(self._changes_at, step, self._changes, STEPS_KEPT)
        if self.is_on and score:
            ids, labels = zip(*self._texts.values(), strict=True) if self._texts else ((), ())
            columns = {"input_ids": Ragged.of(ids, torch.int64), "labels": Ragged.of(labels, torch.int64)}
            scores = score(Batch(columns, ids=torch.arange(len(ids)))).rows()
            _put(self._scores, step, dict(zip(self._texts, scores, strict=True)), VERSIONS_KEPT)

    def lags(self, versions: Tensor) -> Tensor:
        """Returns int64 of the same shape: the number of changes since the weights of each version were sent;
        `UNKNOWN` for weights that this model has not sent. `versions` are the steps in which they were."""
        known, places = torch.unique(versions, return_inverse=True)
        at = [self._changes_at.get(version) for version in known.tolist()]
        lags = [UNKNOWN if one is None else self._changes - one for one in at]
        return torch.tensor(lags, dtype=torch.int64, device=versions.device)[places]

    def differences(self, batch: Batch) -> Tensor:
        """Returns float64 `[tokens]`: the differences between the scores of the sampler and those of this
        model, for the labels of the held answers of a batch. New answers are held from now on."""
        if IDS not in batch.columns:
            return torch.zeros(0, dtype=torch.float64)
        self.is_on, found = True, [torch.zeros(0, dtype=torch.float64)]
        columns = [batch.columns[name] for name in (IDS, LABELS, LOGPROBS)]
        versions = batch.columns[HELD_VERSION]
        assert isinstance(versions, Tensor)
        rows = zip(*(column.rows() for column in columns if isinstance(column, Ragged)), strict=True)
        for (ids, labels, logprobs), version in zip(rows, versions.tolist(), strict=True):
            if not len(ids):
                continue
            key = (*ids.tolist(), *labels.tolist())
            own = self._scores.get(version, {}).get(key)
            if own is not None:
                is_label = labels[1:] != IGNORED
                found.append((own.double() - logprobs.double()).abs()[1:][is_label])
            self._texts.setdefault(key, (ids.clone(), labels.clone()))
        return torch.cat(found)


def _put(kept: dict[int, Value], step: int, value: Value, most: int) -> None:
    """Adds a value as the newest one, and drops the oldest one of more than `most`."""
    kept.pop(step, None)
    kept[step] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


class ParityCheck:
    """Compares a model with its sampler in each update, and reports large differences."""

    def __init__(self, mode: str) -> None:
        """`mode` is one of `MODES`; otherwise `ModelError` is raised."""
        if mode not in MODES:
            raise ModelError(f"`parity` is {' or '.join(MODES)}, not `{mode}`")
        self._mode, self.weights = mode, SentWeights()
        self._is_measured, self._is_reported = False, False
        self._sums, self._max = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        """Of the update that is measured: the sum of the differences, the number of tokens, the sum of the
        lags, and the number of tokens with a known lag; and the largest difference."""

    def sent(self, step: int, score: Score) -> None:
        """Notes that the weights are sent in `step`. `score` computes log-probabilities with them. All ranks
        call this together."""
        self.weights.sent(step, None if self._mode == "off" else score)

    def add(self, outputs: Outputs, batch: Batch) -> None:
        """Adds the differences of a micro-batch, if an update is measured. `outputs` are those of its forward
        pass."""
        versions, targets = batch.columns.get(VERSION), outputs.texts.targets
        if not self._is_measured or not isinstance(versions, Tensor) or not len(batch):
            return
        device = targets.device
        of_tokens = versions.to(device)[:, None].expand(targets.shape)
        if VERSIONS in batch.columns:
            of_tokens = aligned(batch, VERSIONS, outputs.texts)
        is_label, lags = targets != IGNORED, self.weights.lags(of_tokens)
        is_counted = is_label & (lags == 0)
        difference = outputs.token_logprobs.detach() - aligned(batch, "sampled_logprobs", outputs.texts)
        difference = torch.where(is_counted, difference.abs().double(), 0.0)
        is_known = is_label & (lags != UNKNOWN)
        own = [difference.sum(), is_counted.sum(), lags[is_known].sum(), is_known.sum()]
        self._sums = self._sums.to(device) + torch.stack([one.to(device, torch.float64) for one in own])
        if difference.numel():
            self._max = torch.maximum(self._max.to(device), difference.max())

    @contextmanager
    def measure(self, batch: Batch, step: int, data: Collective) -> Iterator[dict[str, float]]:
        """Returns a context for the forward passes of an update with `batch`. At its end, the dictionary has
        the metrics, if the batch was sampled.

        `parity_mean` and `parity_max` are in nats, over the tokens that were sampled from the weights which
        the update is about to change, and over those of held answers. `lag` is the mean number of updates
        since the weights of a token were sent. A metric without such tokens is left out.

        All ranks of `data` enter and leave the context together. If the mean difference is above the limit,
        the first one is logged. With the mode `error`, it raises `ModelError`.
        """
        found: dict[str, float] = {}
        if self._mode == "off" or "sampled_logprobs" not in batch:
            yield found
            return
        held = self.weights.differences(batch)
        self._sums = torch.tensor([float(held.sum()), float(len(held)), 0, 0], dtype=torch.float64)
        self._max = held.max() if len(held) else torch.zeros((), dtype=torch.float64)
        self._is_measured = True
        try:
            yield found
        finally:
            self._is_measured = False
        own = torch.cat([self._sums.to(data.device), self._max.to(data.device)[None]])
        rows = torch.stack(data.all_gather(own)).cpu()
        total, tokens, lags, known = rows[:, :4].sum(0).tolist()
        if tokens:
            found |= {"parity_mean": total / tokens, "parity_max": float(rows[:, 4].max())}
        if known:
            found["lag"] = lags / known
        self._judge(found.get("parity_mean", 0.0), step)

    def _judge(self, mean: float, step: int) -> None:
        if mean <= MAX_MEAN_NATS:
            return
        message = (
            f"the log-probabilities of the sampled tokens differ by {mean:.3g} nats in the mean between the "
            f"sampler and this model, which have the same weights; more than {MAX_MEAN_NATS} "
            "means that they compute different distributions; compare `temperature`, `top_p`, `top_k` and "
            "`dtype` of both"
        )
        if self._mode == "error":
            raise ModelError(f"{message}; the weights were not changed")
        if not self._is_reported:
            log.warning("step %d: %s", step, message)
        self._is_reported = True
