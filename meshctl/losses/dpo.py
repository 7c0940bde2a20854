"""Direct preference optimization (Rafailov et al., 2023, arXiv:2305.18290, equation 7).

    h = (log p(chosen) - log ref(chosen)) - (log p(rejected) - log ref(rejected))
    loss = -log sigmoid(beta h)

With `label_smoothing` e it is the conservative form (Mitchell, 2023), for labels that are wrong with
probability e:  -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from meshctl.losses.loss import LossSum


def dpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> LossSum:
    """Returns the sum of the losses of all pairs, with the number of pairs as the count.

    All inputs are `[pairs]`: sums of log-probabilities over the tokens of an answer. `metrics` has the sums
    of `chosen_reward`, `rejected_reward`, `margin` and `accuracy` over the pairs.
    """
    chosen = beta * (chosen_logprobs - ref_chosen_logprobs)
    rejected = beta * (rejected_logprobs - ref_rejected_logprobs)
    margin = chosen - rejected
    losses = -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return preference_sum(losses, chosen, rejected)


def preference_sum(losses: Tensor, chosen: Tensor, rejected: Tensor) -> LossSum:
    """Returns the sum of `losses`, with the number of pairs as the count, and metrics of the rewards.

    `losses`, the rewards `chosen` and the rewards `rejected` are `[pairs]`. The metrics are sums over the
    pairs and have no gradient.
    """
    with torch.no_grad():
        margin = chosen - rejected
        metrics = {
            "chosen_reward": chosen.detach().sum(),
            "rejected_reward": rejected.detach().sum(),
            "margin": margin.sum(),
            "accuracy": (margin > 0).to(margin.dtype).sum(),
        }
    return LossSum(losses.sum(), torch.full_like(metrics["margin"], len(losses)), metrics)
