"""Log-probabilities of labels, and their cross entropy.

log p(label) = logit[label] - log sum over v of exp(logit[v])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshctl.labels import IGNORED
from meshctl.losses.loss import LossSum


def token_logprobs(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Returns the log-probability of each label, `[...]`, in float32 or float64. The result is 0 where the
    label is -100. `temperature` divides the logits.

    `logits` is `[..., vocabulary]` and `labels` is int64 `[...]`. The logits at position t predict the label
    at position t. For a causal model, the caller therefore shifts the labels by one.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logits = logits if temperature == 1 else logits / temperature
    tokens = logits.flatten(0, -2), labels.flatten()
    negated = nn.functional.cross_entropy(*tokens, ignore_index=IGNORED, reduction="none")
    return -negated.view(labels.shape)


def cross_entropy(logprobs: Tensor, mask: Tensor) -> LossSum:
    """The loss of pre-training and supervised fine-tuning: the sum of `-mask * logprobs` over all tokens,
    with the sum of `mask` as the count.

    `logprobs` and `mask` are `[tokens]`, or have any other shape in common. `mask` is boolean or has weights.
    The log-probability of a token with weight 0 is not used, so it may be infinite or NaN.
    """
    weights = mask.to(logprobs.dtype)
    used = torch.where(mask != 0, logprobs, 0.0)
    return LossSum(-(used * weights).sum(), weights.sum().detach())
