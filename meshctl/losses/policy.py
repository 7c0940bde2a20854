"""The parts that losses of policies share: the sampled tokens, their aggregation, ratios, divergences and the
truncated importance correction.

    tokens.units("sequence")          weights of tokens, and a count
    tokens.ratio("grpo")              p(token) / p_old(token)
    policy_sum(tokens, losses, ...)   correction, KL term, sums and metrics

`old_logprobs` are those of the trained model before its first update with the batch, and `sampled_logprobs`
those that the sampler reports. Without `old_logprobs` the ratio is taken to `sampled_logprobs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from meshctl.losses.function import LossError, lacking
from meshctl.losses.loss import LossSum

Aggregation = Literal["token", "sequence", "group", "constant"]
KlEstimator = Literal["k1", "k2", "k3"]
IMPORTANCE_CAP = 2.0
"""The maximum importance weight of a token, where a recipe says nothing."""


@dataclass(frozen=True, eq=False)
class Units:
    """The weight of each token in a sum, and the number of units by which a trainer divides the sum."""

    weights: Tensor
    """`[tokens]`"""
    count: Tensor
    """0-dim"""

    def sum(self, values: Tensor) -> Tensor:
        """Returns the weighted sum of `values`, `[tokens]`. A value with weight 0 may be infinite or NaN."""
        return (torch.where(self.weights != 0, values, 0.0) * self.weights).sum()


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of the samples of a micro-batch, as the inputs of a loss name them."""

    logprobs: Tensor
    """`[tokens]`, as all fields without another shape."""
    mask: Tensor
    sample_index: Tensor
    """int64: the row of each token's sample."""
    sequence_tokens: Tensor
    """`[samples]`"""
    old_logprobs: Tensor | None = None
    sampled_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    group_tokens: Tensor | None = None
    """`[samples]`: the number of labels of all samples of a sample's group."""
    group_samples: Tensor | None = None
    """`[samples]`: the number of samples of a sample's group."""

    def units(self, aggregation: Aggregation, max_tokens: float = 1.0) -> Units:
        """Returns the weights of the tokens and the number of units.

            token       all tokens have the same weight; the units are tokens
            sequence    all samples with a label have the same weight; the units are these samples
            group       all groups with a label have the same weight, and all tokens of a group
            constant    a token has the weight 1 / `max_tokens`; the units are samples

        All weights of a token are known in its own micro-batch. Raises `LossError` for another name, and for
        `group` where the batch has no groups.
        """
        if aggregation not in get_args(Aggregation):
            raise LossError(f"`aggregation` is {' or '.join(get_args(Aggregation))}, not `{aggregation}`")
        mask = self.mask.detach()
        if aggregation == "token":
            return Units(mask, mask.sum())
        if aggregation == "sequence":
            return self._equal(self.sequence_tokens, torch.ones_like(self.sequence_tokens))
        if aggregation == "constant":
            return Units(mask / max_tokens, mask.new_tensor(len(self.sequence_tokens)))
        if self.group_tokens is None or self.group_samples is None:
            raise LossError(lacking("`aggregation: group`", ["group_tokens"], self._given))
        return self._equal(self.group_tokens, 1 / self.group_samples)

    def _equal(self, tokens: Tensor, parts: Tensor) -> Units:
        """Returns units with the same weight. `tokens` is the number of labels of each sample's unit, and
        `parts` are the parts of a unit that samples are, both `[samples]`."""
        mask = self.mask.detach()
        weights = mask / tokens.detach().to(mask.dtype).clamp(min=1)[self.sample_index]
        return Units(weights, torch.where(tokens > 0, parts, 0).to(mask.dtype).sum())

    def sample_means(self, values: Tensor) -> Tensor:
        """Returns `[samples]`: the mean of `values`, `[tokens]`, over the labels of each sample."""
        sums = values.new_zeros(len(self.sequence_tokens))
        sums = sums.index_add(0, self.sample_index, values * self.mask.to(values.dtype))
        return sums / self.sequence_tokens.to(values.dtype).clamp(min=1)

    def log_ratio(self, loss: str) -> Tensor:
        """Returns log p(token) - log p_old(token), and 0 where the mask is 0. `loss` is the name of the loss.
        Raises `LossError` without `old_logprobs` and `sampled_logprobs`."""
        old = self.sampled_logprobs if self.old_logprobs is None else self.old_logprobs
        if old is None:
            raise LossError(lacking(f"loss `{loss}`", ["sampled_logprobs", "old_logprobs"], self._given))
        return self.difference(self.logprobs, old)

    def difference(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns `first - second`, and 0 where the mask is 0."""
        return torch.where(self.mask != 0, first - second, 0.0)

    def importance(self, cap: float | None) -> Tensor | None:
        """Returns the weights min(p_trainer / p_sampler, `cap`), `[tokens]` and without a gradient.

        The trainer's probabilities are `old_logprobs`, or else those of the running update. The result is
        None for a `cap` of None or without `sampled_logprobs`.
        """
        if cap is None or self.sampled_logprobs is None:
            return None
        trainer = self.logprobs if self.old_logprobs is None else self.old_logprobs
        return self.difference(trainer, self.sampled_logprobs).detach().exp().clamp(max=cap)

    @property
    def _given(self) -> dict[str, Tensor]:
        return {name: one for name, one in vars(self).items() if one is not None}


def kl_estimate(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """Returns an estimate of KL(p || q) for each token that p sampled. `log_ratio` is log p - log q.

        k1    log p - log q                   without bias; its gradient is 0 in expectation
        k2    (log p - log q)^2 / 2           its gradient is that of the divergence on-policy
        k3    q / p - 1 - (log q - log p)     without bias, never negative

    Schulman, 2020, http://joschu.net/blog/kl-approx.html. Raises `LossError` for another name.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        return torch.expm1(-log_ratio) + log_ratio
    raise LossError(f"`kl_estimator` is {' or '.join(get_args(KlEstimator))}, not `{estimator}`")


def policy_sum(
    tokens: Tokens,
    losses: Tensor,
    units: Units,
    metrics: Mapping[str, Tensor],
    *,
    kl: float,
    kl_estimator: KlEstimator,
    importance_cap: float | None,
) -> LossSum:
    """Returns the sum of `weight loss + kl KL(p || ref)` over tokens, with the number of units as the count.

    `losses` and the `metrics` are `[tokens]`. The weight is the truncated importance correction (Yao et al.,
    2025, https://fengyao.notion.site/off-policy-rl) where `old_logprobs` and `sampled_logprobs` differ.
    The metrics of the result are those of `metrics`, `importance` (the mean weight) and `kl`, where there are
    such inputs.
    """
    found = dict(metrics)
    weights = tokens.importance(importance_cap)
    if weights is not None:
        losses, found["importance"] = losses * weights, weights
    if tokens.ref_logprobs is not None:
        log_ratio = tokens.difference(tokens.logprobs, tokens.ref_logprobs)
        found["kl"] = kl_estimate(log_ratio, kl_estimator)
        losses = losses + kl * found["kl"]
    sums = {name: units.sum(values.detach()) for name, values in found.items()}
    return LossSum(units.sum(losses), units.count.detach(), sums)
