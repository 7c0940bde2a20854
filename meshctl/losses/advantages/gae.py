"""Generalized advantage estimation, from the values of a critic (Schulman et al., 2015, arXiv:1506.02438,
equation 16).

    d_t = r_t + gamma v_(t+1) - v_t
    A_t = d_t + gamma lam A_(t+1)
    R_t = A_t + v_t                          the return, which the critic learns

v_t is the value of the text before token t, and 0 after the last one. The reward of an answer is that of its
last token. Tokens without a label, such as those of a tool, are left out: the token after them is the next.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meshctl.losses.advantages.advantage import Estimates
from meshctl.losses.advantages.whitened import moments
from meshctl.losses.function import LossError, lacking
from meshctl.losses.policy import KlEstimator, kl_estimate


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    over_ranks: Callable[[Tensor], Tensor],
    old_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
    eps: float = 1e-8,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k1",
) -> Estimates:
    """Returns the advantages and the returns of all tokens, `[samples, tokens]`.

    `rewards` are `[samples]` or `[samples, tokens]`; all other tensors are `[samples, tokens]`. With
    `whiten`, the advantages of all ranks have the mean 0 and the standard deviation 1; the returns are those
    before. `kl` is the weight of a penalty in the reward of each token, an estimate of the divergence from
    `ref_logprobs` (Ouyang et al., 2022, arXiv:2203.02155, equation 2).
    """
    is_label = mask != 0
    earned = rewards if rewards.ndim == 2 else _at_the_end(rewards, is_label)
    if ref_logprobs is not None:
        own = sampled_logprobs if old_logprobs is None else old_logprobs
        if own is None:
            raise LossError(lacking("`kl` of advantage `gae`", ["sampled_logprobs"], {"rewards": rewards}))
        earned = earned - kl * kl_estimate(own - ref_logprobs, kl_estimator)
    advantages = _advantages(earned, values, is_label, gamma, lam)
    returns = torch.where(is_label, advantages + values, 0.0)
    if whiten:
        mean, deviation = moments(advantages, mask, over_ranks)
        advantages = torch.where(is_label, (advantages - mean) / (deviation + eps), 0.0)
    return Estimates(advantages, returns)


def _at_the_end(rewards: Tensor, is_label: Tensor) -> Tensor:
    """Returns `[samples, tokens]`: the reward of each sample at its last label, and 0 elsewhere."""
    labels_from_here = is_label.flip(1).cumsum(1).flip(1)
    is_last = is_label & (labels_from_here == 1)
    return torch.where(is_last, rewards[:, None], 0.0)


def _advantages(rewards: Tensor, values: Tensor, is_label: Tensor, gamma: float, lam: float) -> Tensor:
    """Returns `[samples, tokens]`: the advantage of each label, and 0 elsewhere."""
    found = torch.zeros_like(values)
    next_value, next_advantage = values.new_zeros(len(values)), values.new_zeros(len(values))
    for token in reversed(range(values.shape[1])):
        here = is_label[:, token]
        error = rewards[:, token] + gamma * next_value - values[:, token]
        advantage = error + gamma * lam * next_advantage
        found[:, token] = torch.where(here, advantage, 0.0)
        next_value = torch.where(here, values[:, token], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    return found
