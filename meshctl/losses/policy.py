"""Losses of policies, for sampled answers. All but `cispo` and `rloo` clip the ratio of probabilities, and
differ in the defaults of their options:

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) + kl KL(p || ref)

    grpo     Shao et al., 2024, arXiv:2402.03300, equations 3 and 4: the mean over the tokens of an answer,
             then over answers
    dr_grpo  Liu et al., 2025, arXiv:2503.20783, section 3.1 and listing 1: the sum over the tokens of an
             answer, divided by `max_tokens`, then the mean over answers. The equations of the paper have the
             constant 1, and its listing the largest number of new tokens of an answer.
    dapo     Yu et al., 2025, arXiv:2503.14476, equation 8: decoupled clipping, and the mean over tokens, as
             in the authors' code. The equation has this mean for each group: `aggregation: group`.
    ppo      Schulman et al., 2017, arXiv:1707.06347, equation 7, with the advantages of `gae`
    gspo     Zheng et al., 2025, arXiv:2507.18071, equations 5 and 7: one ratio for each answer, that of its
             whole likelihood, normalized by its length. Its range of clipping is therefore much smaller: the
             defaults are those of section 5.1.

`old_logprobs` are those of the trained model before its first update with the batch, and `sampled_logprobs`
those that the sampler reports. Without `old_logprobs` the ratio is taken to `sampled_logprobs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from meshctl.losses.loss import LossError, LossSum, lacking

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
    episode_tokens: Tensor | None = None
    """`[samples]`: the number of labels of all rows of a sample's episode."""
    episode_rows: Tensor | None = None
    """`[samples]`: the number of these rows."""

    def units(self, aggregation: Aggregation, max_tokens: float = 1.0) -> Units:
        """Returns the weights of the tokens and the number of units.

            token       all tokens have the same weight; the units are tokens
            sequence    all samples with a label have the same weight; the units are these samples
            group       all groups with a label have the same weight, and all tokens of a group
            constant    a token has the weight 1 / `max_tokens`; the units are samples

        The rows of an episode of an agent are one sample.
        All weights of a token are known in its own micro-batch. Raises `LossError` for another name, and for
        `group` where the batch has no groups.
        """
        if aggregation not in get_args(Aggregation):
            raise LossError(f"`aggregation` is {' or '.join(get_args(Aggregation))}, not `{aggregation}`")
        mask = self.mask.detach()
        if aggregation == "token":
            return Units(mask, mask.sum())
        one = torch.ones_like(self.sequence_tokens, dtype=mask.dtype)
        parts = one if self.episode_rows is None else one / self.episode_rows
        if aggregation == "sequence":
            whole = self.sequence_tokens if self.episode_tokens is None else self.episode_tokens
            return self._equal(whole, parts)
        if aggregation == "constant":
            return Units(mask / max_tokens, parts.sum())
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
    importance_cap: float | None,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k1",
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


RATIO_OF_TOKENS, RATIO_OF_SEQUENCES = False, True
"""The ratios of a loss: one for each token, or for all tokens of a sample the geometric mean of theirs."""


def clipped_loss(
    loss: str,
    is_per_sequence: bool,
    /,
    logprobs: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    group_tokens: Tensor | None = None,
    group_samples: Tensor | None = None,
    episode_tokens: Tensor | None = None,
    episode_rows: Tensor | None = None,
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Aggregation = "token",
    max_tokens: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    `loss` is the name of the loss, for messages. `sequence_tokens`, `group_tokens` and `group_samples` are
    `[samples]`; all other inputs are `[tokens]`. `clip_high` is `clip` if it is None. With `kl`, the input
    `ref_logprobs` is required. `Tokens` describes `aggregation` and `max_tokens`, `policy_sum`
    the correction with `importance_cap`. Where the ratio is already taken to `sampled_logprobs`, there is no
    correction. `metrics` has `clip_fraction`, `old_kl` (k3 of the old policy and the new one), and
    `importance` and `kl` where there are such inputs.
    """
    old = old_logprobs, sampled_logprobs, ref_logprobs
    units = group_tokens, group_samples, episode_tokens, episode_rows
    tokens = Tokens(logprobs, mask, sample_index, sequence_tokens, *old, *units)
    log_ratio = tokens.log_ratio(loss)
    compared = tokens.sample_means(log_ratio)[tokens.sample_index] if is_per_sequence else log_ratio
    losses, is_clipped = clipped(compared, advantages, clip, clip_high)
    metrics = {"clip_fraction": is_clipped, "old_kl": kl_estimate(-log_ratio, "k3")}
    cap = None if old_logprobs is None else importance_cap
    return policy_sum(tokens, losses, tokens.units(aggregation, max_tokens), metrics, cap, kl, kl_estimator)


def clipped(
    log_ratio: Tensor, advantages: Tensor, clip: float, clip_high: float | None
) -> tuple[Tensor, Tensor]:
    """Returns -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) for each token, and whether it is clipped, as 0
    or 1. r is exp(`log_ratio`); `clip_high` is `clip` where it is None."""
    ratio, high = log_ratio.exp(), clip if clip_high is None else clip_high
    free, bounded = ratio * advantages, ratio.clamp(1 - clip, 1 + high) * advantages
    return -torch.minimum(free, bounded), (bounded < free).to(ratio.dtype)


grpo = partial(clipped_loss, "grpo", RATIO_OF_TOKENS, aggregation="sequence")
dr_grpo = partial(clipped_loss, "dr_grpo", RATIO_OF_TOKENS, aggregation="constant")
dapo = partial(clipped_loss, "dapo", RATIO_OF_TOKENS, clip_high=0.28, aggregation="token")
ppo = partial(clipped_loss, "ppo", RATIO_OF_TOKENS, aggregation="token")
gspo = partial(clipped_loss, "gspo", RATIO_OF_SEQUENCES, clip=3e-4, clip_high=4e-4, aggregation="sequence")


def cispo(
    logprobs: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    group_tokens: Tensor | None = None,
    group_samples: Tensor | None = None,
    episode_tokens: Tensor | None = None,
    episode_rows: Tensor | None = None,
    *,
    min_ratio: float = 0.0,
    max_ratio: float = 5.0,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Aggregation = "token",
    max_tokens: float = 1.0,
) -> LossSum:
    """CISPO, which clips the weights of the tokens instead of their gradients (MiniMax, 2025,
    arXiv:2506.13585, equations 4 and 5).

        loss = -stop_gradient(clamp(r, min_ratio, max_ratio)) A log p(token)

    Every token has a gradient, also one with a clipped ratio. The paper sets no lower bound. The default of
    the upper bound is that of Khatri et al., 2025, arXiv:2510.13786. The inputs, the other options and the
    metrics are those of `clipped_loss`.
    """
    old = old_logprobs, sampled_logprobs, ref_logprobs
    units = group_tokens, group_samples, episode_tokens, episode_rows
    tokens = Tokens(logprobs, mask, sample_index, sequence_tokens, *old, *units)
    log_ratio = tokens.log_ratio("cispo").detach()
    bounded = log_ratio.exp().clamp(min_ratio, max_ratio)
    metrics = {
        "clip_fraction": (bounded != log_ratio.exp()).to(bounded.dtype),
        "old_kl": kl_estimate(-log_ratio, "k3"),
    }
    losses, cap = -bounded * advantages * logprobs, None if old_logprobs is None else importance_cap
    return policy_sum(tokens, losses, tokens.units(aggregation, max_tokens), metrics, cap, kl, kl_estimator)


def rloo(
    logprobs: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    group_tokens: Tensor | None = None,
    group_samples: Tensor | None = None,
    episode_tokens: Tensor | None = None,
    episode_rows: Tensor | None = None,
    *,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Aggregation = "constant",
    max_tokens: float = 1.0,
) -> LossSum:
    """REINFORCE leave-one-out: the gradient of the policy without clipping (Ahmadian et al., 2024,
    arXiv:2402.14740, equation 7).

        loss = -A (sum over tokens of log p(token))

    The mean is over answers. The method is on-policy: a batch is for one update. Where the sampler's
    probabilities differ, `importance_cap` bounds the weight of a token. The inputs and options are those of
    `clipped_loss`. `metrics` has `importance` and `kl` where there are such inputs.
    """
    old = old_logprobs, sampled_logprobs, ref_logprobs
    units = group_tokens, group_samples, episode_tokens, episode_rows
    tokens = Tokens(logprobs, mask, sample_index, sequence_tokens, *old, *units)
    losses, cap = -advantages * logprobs, importance_cap
    return policy_sum(tokens, losses, tokens.units(aggregation, max_tokens), {}, cap, kl, kl_estimator)


def value(
    predicted_values: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    returns: Tensor,
    values: Tensor | None = None,
    episode_tokens: Tensor | None = None,
    episode_rows: Tensor | None = None,
    *,
    clip: float | None = None,
    aggregation: Literal["token", "sequence"] = "token",
) -> LossSum:
    """The loss of a critic: the squared error of its values, optionally clipped as those of the policy are
    (Schulman et al., 2017, arXiv:1707.06347, equation 9; the clipping is that of the authors' code).

        loss = 1/2 max((v - R)^2, (clamp(v, v_old - clip, v_old + clip) - R)^2)

    v is the value of the text before a token, and R the return from this token on: its advantage before
    whitening plus v_old (`gae`).

    Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    `sequence_tokens` is `[samples]`; all other inputs are `[tokens]`. `values` are those of the critic before
    its first update with the batch; `clip` needs them. `aggregation` is `token` or `sequence`. `metrics` has
    the sums of `value` and `return`.
    """
    of_episodes = {"episode_tokens": episode_tokens, "episode_rows": episode_rows}
    tokens = Tokens(predicted_values, mask, sample_index, sequence_tokens, **of_episodes)
    units = tokens.units(aggregation)
    losses = (predicted_values - returns).square()
    if clip is not None:
        if values is None:
            raise LossError(lacking("loss `value` with `clip`", ["values"], {"returns": returns}))
        bounded = torch.clamp(predicted_values, values - clip, values + clip)
        losses = torch.maximum(losses, (bounded - returns).square())
    metrics = {"value": units.sum(predicted_values.detach()), "return": units.sum(returns.detach())}
    return LossSum(units.sum(losses / 2), units.count.detach(), metrics)
