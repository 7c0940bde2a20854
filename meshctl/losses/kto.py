"""Kahneman-Tversky optimization, for single answers with a thumb up or down (Ethayarajh et al., 2024,
arXiv:2402.01306, equation 8).

    r = log p(y) - log ref(y)
    loss = desirable_weight   (1 - sigmoid(beta (r - z)))       for a desirable answer
           undesirable_weight (1 - sigmoid(beta (z - r)))       for an undesirable one

The reference point z estimates the divergence of the policy from the reference, at least 0, from answers that
belong to other prompts. It is one number for all ranks and has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.losses.loss import LossSum


def kto(
    sequence_logprobs: Tensor,
    ref_sequence_logprobs: Tensor,
    desirable: Tensor,
    kl: Tensor | float = 0.0,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> LossSum:
    """Returns the sum of the losses of all samples, with the number of samples as the count.

    `sequence_logprobs`, `ref_sequence_logprobs` and the boolean `desirable` are `[samples]`. `kl` is the
    estimate of the reference point z, 0-dim or `[samples]`: the mean of `sequence_logprobs -
    ref_sequence_logprobs` over mismatched answers on all ranks. The default of `kl` is 0. `metrics` has the
    sum of `reward` over the samples.
    """
    ratio = sequence_logprobs - ref_sequence_logprobs
    reference = torch.as_tensor(kl, dtype=ratio.dtype, device=ratio.device).detach().clamp(min=0)
    gain = beta * (ratio - reference)
    desired = desirable_weight * (1 - torch.sigmoid(gain))
    undesired = undesirable_weight * (1 - torch.sigmoid(-gain))
    losses = torch.where(desirable.bool(), desired, undesired)
    reward = (beta * ratio).detach().sum()
    return LossSum(losses.sum(), torch.full_like(reward, len(losses)), {"reward": reward})
