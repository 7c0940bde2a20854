"""Odds ratio preference optimization, without a reference model (Hong et al., 2024, arXiv:2403.07691,
equations 3 to 7, with lambda as `beta`).

    P(y) = exp(1 / |y| log p(y)),  odds(y) = P(y) / (1 - P(y))
    loss = -log P(chosen) - beta log sigmoid(log(odds(chosen) / odds(rejected)))

The first term is the mean over pairs of the mean over tokens, as in the paper. TRL takes the mean over all
tokens of the batch there, and includes those of the prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from meshctl.losses.dpo import preference_sum
from meshctl.losses.loss import LossSum

MAX_LOGPROB = -1e-7
"""The upper bound of the mean log-probability from which the odds are computed. At 0 the odds are
infinite."""


def orpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 0.1,
) -> LossSum:
    """Returns the sum of the losses of all pairs, with the number of pairs as the count.

    All inputs are `[pairs]`. `metrics` has the same keys as the metrics of `dpo`.
    """
    chosen = chosen_logprobs / chosen_tokens.clamp(min=1)
    rejected = rejected_logprobs / rejected_tokens.clamp(min=1)
    losses = -chosen - beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))
    return preference_sum(losses, beta * chosen, beta * rejected)


def _log_odds(logprob: Tensor) -> Tensor:
    bounded = logprob.clamp(max=MAX_LOGPROB)
    return bounded - torch.log(-torch.expm1(bounded))
