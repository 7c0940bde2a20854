"""Distillation: the divergence of a student from a teacher, for each token (Agarwal et al., 2024,
arXiv:2306.13649, equations 1 and 2).

    forward_kl    sum over v of T(v) (log T(v) - log S(v))
    reverse_kl    sum over v of S(v) (log S(v) - log T(v))
    jsd           beta KL(T || M) + (1 - beta) KL(S || M),  M = beta T + (1 - beta) S
    sampled       -stop_gradient(w (log T(token) - log S(token))) log S(token)

The sums are over the `top_logprobs` likeliest tokens v of the teacher. With `tail`, all other tokens together
count as one more. `sampled` needs only the teacher's log-probabilities of the tokens that the student has
sampled: its gradient is that of the reverse divergence in expectation (Lu, 2025,
https://thinkingmachines.ai/blog/on-policy-distillation). w is the truncated importance weight of the token.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from meshctl.losses.loss import LossError, LossSum
from meshctl.losses.policy import IMPORTANCE_CAP, Tokens, policy_sum

Divergence = Literal["forward_kl", "reverse_kl", "jsd", "sampled"]
MAX_LOG_MASS = -1e-7
"""The upper bound of the log-mass of the teacher's likeliest tokens. At 0, the tail would have the
log-probability -inf."""


def distill(
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    logprobs: Tensor | None = None,
    teacher_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    top_logprobs: Tensor | None = None,
    teacher_top_logprobs: Tensor | None = None,
    *,
    divergence: Divergence = "reverse_kl",
    beta: float = 0.5,
    tail: bool = True,
    importance_cap: float | None = IMPORTANCE_CAP,
    aggregation: Literal["token", "sequence", "constant"] = "token",
) -> LossSum:
    """Returns the sum of the divergences of all tokens, with the number of units of `aggregation` as the
    count.

    `top_logprobs` and `teacher_top_logprobs` are `[tokens, k]`: the log-probabilities of the same k tokens.
    `sequence_tokens` is `[samples]`; all other inputs are `[tokens]`. `aggregation` is `token`, `sequence` or
    `constant`, and `beta` is between 0 and 1. The metrics of `sampled` are `reverse_kl`, an estimate, and
    `importance` where there are `sampled_logprobs`.
    """
    if divergence not in get_args(Divergence):
        raise LossError(f"`divergence` is {' or '.join(get_args(Divergence))}, not `{divergence}`")
    if divergence == "sampled":
        assert logprobs is not None and teacher_logprobs is not None
        tokens = Tokens(logprobs, mask, sample_index, sequence_tokens, sampled_logprobs=sampled_logprobs)
        gap = tokens.difference(logprobs.detach(), teacher_logprobs)
        units = tokens.units(aggregation)
        return policy_sum(tokens, gap * logprobs, units, {"reverse_kl": gap}, importance_cap)
    assert top_logprobs is not None and teacher_top_logprobs is not None
    units = Tokens(mask, mask, sample_index, sequence_tokens).units(aggregation)
    student, teacher = top_logprobs, teacher_top_logprobs.to(top_logprobs.dtype)
    if tail:
        student, teacher = _with_tail(student), _with_tail(teacher)
    return LossSum(units.sum(_divergence(divergence, student, teacher, beta)), units.count.detach())


def _with_tail(logprobs: Tensor) -> Tensor:
    """Returns `[tokens, k + 1]`: the log-probabilities, and that of all other tokens together."""
    mass = logprobs.logsumexp(-1, keepdim=True).clamp(max=MAX_LOG_MASS)
    return torch.cat([logprobs, torch.log(-torch.expm1(mass))], -1)


def _divergence(name: str, student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    if name == "forward_kl":
        return _kl(teacher, student)
    if name == "reverse_kl":
        return _kl(student, teacher)
    mixed = torch.logaddexp(teacher + math.log(beta), student + math.log(1 - beta))
    return beta * _kl(teacher, mixed) + (1 - beta) * _kl(student, mixed)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)
