"""CISPO, which clips the weights of the tokens instead of their gradients (MiniMax, 2025, arXiv:2506.13585,
equations 4 and 5).

    r = p(token) / p_old(token)
    loss = -stop_gradient(clamp(r, min_ratio, max_ratio)) A log p(token)

Every token has a gradient, also one with a clipped ratio. The paper sets no lower bound. The default of the
upper bound is that of Khatri et al., 2025, arXiv:2510.13786. The advantages are those of `advantages.grpo`.
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.loss import LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Aggregation, KlEstimator, Tokens, kl_estimate, policy_sum


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
    *,
    min_ratio: float = 0.0,
    max_ratio: float = 5.0,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Aggregation = "token",
    max_tokens: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    The inputs and the other options are those of `grpo`, and so are the metrics.
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
    log_ratio = tokens.log_ratio("cispo").detach()
    bounded = log_ratio.exp().clamp(min_ratio, max_ratio)
    metrics = {
        "clip_fraction": (bounded != log_ratio.exp()).to(bounded.dtype),
        "old_kl": kl_estimate(-log_ratio, "k3"),
    }
    return policy_sum(
        tokens,
        -bounded * advantages * logprobs,
        tokens.units(aggregation, max_tokens),
        metrics,
        kl=kl,
        kl_estimator=kl_estimator,
        importance_cap=None if old_logprobs is None else importance_cap,
    )
