"""Group sequence policy optimization, with one ratio for each answer (Zheng et al., 2025, arXiv:2507.18071,
equations 5 and 7).

    s = exp(mean over tokens of log p(token) - log p_old(token))
    loss = -min(s A, clamp(s, 1 - clip, 1 + clip_high) A)

The ratio of an answer is that of its whole likelihood, normalized by its length, so its range of clipping is
much smaller: the default values are those of section 5.1. The advantages are those of `advantages.grpo`.
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.loss import LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Tokens, clipped_sum


def gspo(
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
    clip: float = 3e-4,
    clip_high: float | None = 4e-4,
    kl: float = 0.0,
    kl_estimator: str = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: str = "sequence",
    max_tokens: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    The inputs and options are those of `grpo`, and so are the metrics. All tokens of an answer have its
    ratio.
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
        "gspo",
        tokens,
        advantages,
        tokens.units(aggregation, max_tokens),
        is_per_sequence=True,
        clip=clip,
        clip_high=clip_high,
        kl=kl,
        kl_estimator=kl_estimator,
        importance_cap=importance_cap,
    )
