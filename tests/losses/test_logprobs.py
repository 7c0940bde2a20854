"""Log-probabilities of labels: the chunked form against torch's own, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshctl.labels import IGNORED
from meshctl.losses.logprobs import chunked_token_logprobs, token_logprobs

TOKENS, WIDTH, VOCABULARY = 6, 5, 11


def head(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    hidden, weight, bias = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    labels = torch.tensor([0, 10, IGNORED, 3, 4, IGNORED])
    return hidden, weight, bias, labels


def test_ignored_labels_have_no_probability() -> None:
    hidden, weight, _, labels = head()
    logits = hidden @ weight.T
    expected = -torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    torch.testing.assert_close(token_logprobs(logits, labels), expected)


def test_leading_dims_are_kept() -> None:
    hidden, weight, _, labels = head()
    logits = hidden @ weight.T
    batched = token_logprobs(logits.view(2, 3, VOCABULARY), labels.view(2, 3))
    torch.testing.assert_close(batched.flatten(), token_logprobs(logits, labels))


@pytest.mark.parametrize("vocab_chunk", [1, 4, VOCABULARY, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_chunks_give_the_same_values_and_gradients(vocab_chunk: int, with_bias: bool) -> None:
    hidden, weight, bias, labels = head()
    inputs = [one.requires_grad_() for one in (hidden, weight, bias)]
    whole = token_logprobs(hidden @ weight.T + (bias if with_bias else 0.0), labels)
    chunked = chunked_token_logprobs(
        hidden, weight, labels, bias=bias if with_bias else None, vocab_chunk=vocab_chunk
    )
    torch.testing.assert_close(chunked, whole)
    scale = torch.arange(1.0, TOKENS + 1, dtype=torch.float64)
    expected = torch.autograd.grad((whole * scale).sum(), inputs, allow_unused=True)
    found = torch.autograd.grad((chunked * scale).sum(), inputs, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_is_summed_in_float32() -> None:
    hidden, weight, _, labels = head(torch.bfloat16)
    hidden.requires_grad_()
    found = chunked_token_logprobs(hidden, weight, labels, vocab_chunk=4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, token_logprobs(hidden @ weight.T, labels), rtol=1e-2, atol=1e-2)
    found.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16
