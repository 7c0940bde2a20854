"""Simple preference optimization, without a reference model (Meng et al., 2024, arXiv:2405.14734,
equation 6).

r(y) = beta / |y| log p(y)
loss = -log sigmoid(r(chosen) - r(rejected) - gamma)
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from meshctl.losses.dpo import preference_sum
from meshctl.losses.loss import LossSum


def simpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all pairs, with the number of pairs as the count.

    All inputs are `[pairs]`. `metrics` has the same keys as the metrics of `dpo`.
    """
    chosen = beta * chosen_logprobs / chosen_tokens.clamp(min=1)
    rejected = beta * rejected_logprobs / rejected_tokens.clamp(min=1)
    return preference_sum(-logsigmoid(chosen - rejected - gamma), chosen, rejected)
