"""Identity preference optimization (Azar et al., 2023, arXiv:2310.12036, equation 17, with tau as `beta`).

h = (log p(chosen) - log ref(chosen)) - (log p(rejected) - log ref(rejected))
loss = (h - 1 / (2 beta))^2
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.dpo import preference_sum
from meshctl.losses.loss import LossSum


def ipo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 0.1,
    per_token: bool = True,
) -> LossSum:
    """Returns the sum of the losses of all pairs, with the number of pairs as the count.

    All inputs are `[pairs]`. With `per_token` each log-ratio is divided by the number of tokens of its
    answer, as TRL does on the authors' advice. Without `per_token` the formula is that of the paper.
    `metrics` has the same keys as the metrics of `dpo`.
    """
    chosen = chosen_logprobs - ref_chosen_logprobs
    rejected = rejected_logprobs - ref_rejected_logprobs
    if per_token:
        chosen, rejected = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
    losses = (chosen - rejected - 1 / (2 * beta)) ** 2
    return preference_sum(losses, beta * chosen, beta * rejected)
