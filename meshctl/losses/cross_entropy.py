"""Cross entropy of the next token: the loss of pre-training and supervised fine-tuning.

    sum over tokens of -mask[t] log p(label[t])

`logprobs.token_logprobs` computes the log-probabilities from logits. `logprobs.chunked_token_logprobs`
computes them from hidden states and the weights of the head, in parts of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.losses.loss import LossSum


def cross_entropy(logprobs: Tensor, mask: Tensor) -> LossSum:
    """Returns the sum of `-mask * logprobs` over all tokens, and the sum of `mask` as the count.

    `logprobs` and `mask` are `[tokens]`, or have any other shape in common. `mask` is boolean or has weights.
    The log-probability of a token with weight 0 is not used, so it may be infinite or NaN.
    """
    weights = mask.to(logprobs.dtype)
    used = torch.where(mask != 0, logprobs, 0.0)
    return LossSum(-(used * weights).sum(), weights.sum().detach())
