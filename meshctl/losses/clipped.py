"""The losses whose ratio of probabilities is clipped. They differ in the defaults of their options.

r = p(token) / p_old(token)
loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) + kl KL(p || ref)

dapo = partial(clipped_loss, "dapo", RATIO_OF_TOKENS, clip_high=0.28, aggregation="token")
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.losses.loss import LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Aggregation, KlEstimator, Tokens, kl_estimate, policy_sum

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
    `ref_logprobs` is required. `policy.Tokens` describes `aggregation` and `max_tokens`, `policy.policy_sum`
    the correction with `importance_cap`. Where the ratio is already taken to `sampled_logprobs`, there is no
    correction. `metrics` has `clip_fraction`, `old_kl` (k3 of the old policy and the new one), and
    `importance` and `kl` where there are such inputs.
    """
    tokens = Tokens(
        logprobs,
        mask,
        sample_index,
        sequence_tokens,
        old_logprobs,
        sampled_logprobs,
        ref_logprobs,
        group_tokens,
        group_samples,
    )
    log_ratio = tokens.log_ratio(loss)
    compared = tokens.sample_means(log_ratio)[tokens.sample_index] if is_per_sequence else log_ratio
    losses, is_clipped = clipped(compared, advantages, clip, clip_high)
    return policy_sum(
        tokens,
        losses,
        tokens.units(aggregation, max_tokens),
        {"clip_fraction": is_clipped, "old_kl": kl_estimate(-log_ratio, "k3")},
        kl=kl,
        kl_estimator=kl_estimator,
        importance_cap=None if old_logprobs is None else importance_cap,
    )


def clipped(
    log_ratio: Tensor, advantages: Tensor, clip: float, clip_high: float | None
) -> tuple[Tensor, Tensor]:
    """Returns -min(r A, clamp(r, 1 - clip, 1 + clip_high) A) for each token, and whether it is clipped, as 0
    or 1. r is exp(`log_ratio`); `clip_high` is `clip` where it is None."""
    ratio, high = log_ratio.exp(), clip if clip_high is None else clip_high
    free, bounded = ratio * advantages, ratio.clamp(1 - clip, 1 + high) * advantages
    return -torch.minimum(free, bounded), (bounded < free).to(ratio.dtype)
