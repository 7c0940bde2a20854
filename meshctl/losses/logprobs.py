"""Log-probabilities of labels, from logits or in parts of the vocabulary from hidden states.

    log p(label) = logit[label] - log sum over v of exp(logit[v])

The chunked form never holds all logits of a token: it keeps a running maximum and sum over parts of the
vocabulary (the online softmax of Milakov and Gimelshein, 2018, arXiv:1805.02867), and computes the logits
again in the backward pass. Its memory is `tokens x vocab_chunk` instead of `tokens x vocabulary`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshctl.labels import IGNORED

VOCAB_CHUNK = 8192
"""The number of vocabulary entries whose logits are in memory at the same time."""


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


def chunked_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    vocab_chunk: int = VOCAB_CHUNK,
) -> Tensor:
    """Returns the value of `token_logprobs(hidden @ weight.T + bias, labels)` without all logits in memory.

    `hidden` is `[tokens, width]`, `weight` is `[vocabulary, width]`, `bias` is `[vocabulary]`, and `labels`
    is int64 `[tokens]`. The logits of `vocab_chunk` vocabulary entries are computed at a time. The result is
    `[tokens]`, in float32 or float64.
    """
    return _Chunked.apply(hidden, weight, bias, labels, vocab_chunk)  # type: ignore[no-any-return,no-untyped-call]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, start: int, stop: int) -> Tensor:
    """Returns `[tokens, stop - start]`: the logits of the vocabulary entries from `start` to before `stop`,
    in float32 or float64."""
    logits = hidden @ weight[start:stop].T
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if bias is None else logits + bias[start:stop]


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, vocab_chunk: int
    ) -> Tensor:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        normalizer = hidden.new_full(labels.shape, -torch.inf, dtype=dtype)
        picked = torch.zeros_like(normalizer)
        for start in range(0, len(weight), vocab_chunk):
            stop = min(start + vocab_chunk, len(weight))
            logits = _logits(hidden, weight, bias, start, stop)
            normalizer = torch.logaddexp(normalizer, logits.logsumexp(-1))
            is_here = (labels >= start) & (labels < stop)
            index = (labels - start).clamp(0, stop - start - 1)
            picked = torch.where(is_here, logits.gather(-1, index[:, None])[:, 0], picked)
        ctx.save_for_backward(hidden, weight, bias, labels, normalizer)
        ctx.vocab_chunk = vocab_chunk
        return torch.where(labels == IGNORED, 0.0, picked - normalizer)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, normalizer = ctx.saved_tensors
        scale = torch.where(labels == IGNORED, 0.0, grads[0])[:, None]
        grad_hidden = torch.zeros_like(hidden, dtype=normalizer.dtype)
        grad_weight, grad_bias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
        for start in range(0, len(weight), ctx.vocab_chunk):
            stop = min(start + ctx.vocab_chunk, len(weight))
            probabilities = (_logits(hidden, weight, bias, start, stop) - normalizer[:, None]).exp()
            grad_logits = -scale * probabilities
            is_here = ((labels >= start) & (labels < stop))[:, None]
            index = (labels - start).clamp(0, stop - start - 1)[:, None]
            grad_logits.scatter_add_(1, index, torch.where(is_here, scale, 0.0))
            if grad_bias is not None:
                grad_bias[start:stop] = grad_logits.sum(0)
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden += grad_logits @ weight[start:stop]
            grad_weight[start:stop] = grad_logits.T @ hidden
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None
