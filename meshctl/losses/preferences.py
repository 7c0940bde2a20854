"""Losses of preferences: of pairs of answers, of which one is preferred, and of single answers with a thumb
up or down. h is the difference of the log-ratios of a pair:

    h = (log p(chosen) - log ref(chosen)) - (log p(rejected) - log ref(rejected))
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from meshctl.losses.loss import LossSum

MAX_LOGPROB = -1e-7
"""The upper bound of the mean log-probability from which the odds of `orpo` are computed. At 0 the odds are
infinite."""


def dpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> LossSum:
    """Direct preference optimization (Rafailov et al., 2023, arXiv:2305.18290, equation 7).

        loss = -log sigmoid(beta h)

    With `label_smoothing` e it is the conservative form (Mitchell, 2023), for labels that are wrong with
    probability e:  -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h).

    All inputs are `[pairs]`: sums of log-probabilities over the tokens of an answer. `metrics` has the sums
    of `chosen_reward`, `rejected_reward`, `margin` and `accuracy` over the pairs.
    """
    chosen = beta * (chosen_logprobs - ref_chosen_logprobs)
    rejected = beta * (rejected_logprobs - ref_rejected_logprobs)
    margin = chosen - rejected
    losses = -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return preference_sum(losses, chosen, rejected)


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
    """Identity preference optimization (Azar et al., 2023, arXiv:2310.12036, equation 17, with tau as
    `beta`).

        loss = (h - 1 / (2 beta))^2

    With `per_token` each log-ratio is divided by the number of tokens of its answer, as TRL does on the
    authors' advice. Without `per_token` the formula is that of the paper.
    """
    chosen = chosen_logprobs - ref_chosen_logprobs
    rejected = rejected_logprobs - ref_rejected_logprobs
    if per_token:
        chosen, rejected = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
    losses = (chosen - rejected - 1 / (2 * beta)) ** 2
    return preference_sum(losses, beta * chosen, beta * rejected)


def simpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> LossSum:
    """Simple preference optimization, without a reference model (Meng et al., 2024, arXiv:2405.14734,
    equation 6).

        r(y) = beta / |y| log p(y)
        loss = -log sigmoid(r(chosen) - r(rejected) - gamma)
    """
    chosen = beta * chosen_logprobs / chosen_tokens.clamp(min=1)
    rejected = beta * rejected_logprobs / rejected_tokens.clamp(min=1)
    return preference_sum(-logsigmoid(chosen - rejected - gamma), chosen, rejected)


def orpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 0.1,
) -> LossSum:
    """Odds ratio preference optimization, without a reference model (Hong et al., 2024, arXiv:2403.07691,
    equations 3 to 7, with lambda as `beta`).

        P(y) = exp(1 / |y| log p(y)),  odds(y) = P(y) / (1 - P(y))
        loss = -log P(chosen) - beta log sigmoid(log(odds(chosen) / odds(rejected)))

    The first term is the mean over pairs of the mean over tokens, as in the paper. TRL takes the mean over
    all tokens of the batch there, and includes those of the prompt.
    """
    chosen = chosen_logprobs / chosen_tokens.clamp(min=1)
    rejected = rejected_logprobs / rejected_tokens.clamp(min=1)
    losses = -chosen - beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))
    return preference_sum(losses, beta * chosen, beta * rejected)


def _log_odds(logprob: Tensor) -> Tensor:
    bounded = logprob.clamp(max=MAX_LOGPROB)
    return bounded - torch.log(-torch.expm1(bounded))


def bradley_terry(
    chosen_scores: Tensor, rejected_scores: Tensor, margin: Tensor | float = 0.0, *, center: float = 0.0
) -> LossSum:
    """The loss of a reward model: the negative log-likelihood of preferences under the model of Bradley and
    Terry (1952), as in Ouyang et al., 2022, arXiv:2203.02155, equation 1.

        loss = -log sigmoid(score(chosen) - score(rejected) - margin)
               + center (score(chosen) + score(rejected))^2

    The margin is that of Llama 2 (arXiv:2307.09288, equation 2): a column `[pairs]`, or 0. The term with
    `center` keeps scores near 0 (Eisenstein et al., 2023, arXiv:2312.09244).
    """
    losses = -logsigmoid(chosen_scores - rejected_scores - margin)
    losses = losses + center * (chosen_scores + rejected_scores) ** 2
    return preference_sum(losses, chosen_scores, rejected_scores)


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
    """Kahneman-Tversky optimization, for single answers (Ethayarajh et al., 2024, arXiv:2402.01306,
    equation 8).

        r = log p(y) - log ref(y)
        loss = desirable_weight   (1 - sigmoid(beta (r - z)))       for a desirable answer
               undesirable_weight (1 - sigmoid(beta (z - r)))       for an undesirable one

    `kl` is the estimate of the reference point z, 0-dim or `[samples]`: the divergence of the policy from the
    reference, as the mean of `sequence_logprobs - ref_sequence_logprobs` over answers that belong to other
    prompts, on all ranks. It has no gradient and is at least 0. `desirable` is boolean `[samples]`. `metrics`
    has the sum of `reward` over the samples.
    """
    ratio = sequence_logprobs - ref_sequence_logprobs
    reference = torch.as_tensor(kl, dtype=ratio.dtype, device=ratio.device).detach().clamp(min=0)
    gain = beta * (ratio - reference)
    desired = desirable_weight * (1 - torch.sigmoid(gain))
    undesired = undesirable_weight * (1 - torch.sigmoid(-gain))
    losses = torch.where(desirable.bool(), desired, undesired)
    reward = (beta * ratio).detach().sum()
    return LossSum(losses.sum(), torch.full_like(reward, len(losses)), {"reward": reward})


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
