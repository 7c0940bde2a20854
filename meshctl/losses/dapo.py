"""DAPO, with decoupled clipping and a loss of tokens (Yu et al., 2025, arXiv:2503.14476, equation 8).

    r = p(token) / p_old(token)
    loss = -min(r A, clamp(r, 1 - clip, 1 + clip_high) A)

All tokens of the batch have the same weight, as in the authors' code. The equation has this mean for each
group: `aggregation: group`. The advantages are those of `advantages.grpo`.
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.loss import LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Tokens, clipped_sum


def dapo(
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
    clip_high: float | None = 0.28,
    kl: float = 0.0,
    kl_estimator: str = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: str = "token",
    max_tokens: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    `sequence_tokens`, `group_tokens` and `group_samples` are `[samples]`; all other inputs are `[tokens]`.
    `clip_high` is `clip` if it is None. With `kl`, the input `ref_logprobs` is required. `policy.Tokens`
    describes `aggregation` and `max_tokens`, `policy.policy_sum` the correction with `importance_cap`.
    `metrics` has `clip_fraction`, `old_kl`, and `importance` and `kl` where there are such inputs.
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
    return clipped_sum(
        "dapo",
        tokens,
        advantages,
        tokens.units(aggregation, max_tokens),
        clip=clip,
        clip_high=clip_high,
        kl=kl,
        kl_estimator=kl_estimator,
        importance_cap=importance_cap,
    )
