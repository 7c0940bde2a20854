"""REINFORCE leave-one-out: the gradient of the policy without clipping (Ahmadian et al., 2024,
arXiv:2402.14740, equation 7).

    loss = -A (sum over tokens of log p(token))

The mean is over answers. The advantages are those of `advantages.rloo`: the reward of an answer minus the
mean reward of the other answers to its prompt. The method is on-policy: a batch is for one update. Where the
sampler's probabilities differ, `importance_cap` bounds the weight of a token.
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.loss import LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Aggregation, KlEstimator, Tokens, policy_sum


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
    *,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Aggregation = "constant",
    max_tokens: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    The inputs and options are those of `grpo`. `metrics` has `importance` and `kl` where there are such
    inputs.
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
    return policy_sum(
        tokens,
        -advantages * logprobs,
        tokens.units(aggregation, max_tokens),
        {},
        kl=kl,
        kl_estimator=kl_estimator,
        importance_cap=importance_cap,
    )
