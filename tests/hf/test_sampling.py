"""The distribution from which tokens are drawn, and the streams of random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.hf.sampler import Sampling, stream_keys, uniforms


def logits(rows: int = 5, vocabulary: int = 40) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.5, top_k=7), Sampling(1.3, top_p=0.6), Sampling(1.0, 9, 0.5)]
)
def test_the_truncated_distribution_is_that_of_transformers(sampling: Sampling) -> None:
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    expected = logits()
    chain: list[Any] = [TemperatureLogitsWarper(sampling.temperature), TopPLogitsWarper(sampling.top_p)]
    if sampling.top_k:
        chain.insert(1, TopKLogitsWarper(sampling.top_k))
    for warp in chain:
        expected = warp(None, expected)
    torch.testing.assert_close(sampling.logprobs(logits()), expected.log_softmax(-1), rtol=0, atol=1e-12)


def test_temperature_0_takes_the_most_likely_token_and_logs_the_model_s_distribution() -> None:
    greedy = Sampling(temperature=0, top_k=3)
    found = greedy.logprobs(logits())
    torch.testing.assert_close(found, logits().log_softmax(-1), rtol=0, atol=1e-12)
    assert greedy.draw(found, torch.rand(5)).tolist() == logits().argmax(-1).tolist()


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    """A token without a probability is never drawn, not even at the ends."""
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    count = 1000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for uniforms_of, expected in ((grid, [0, 500, 0, 200, 300, 0]), ([0, 1 - 2.0**-48], [0, 1, 0, 0, 1, 0])):
        numbers = torch.as_tensor(uniforms_of, dtype=torch.float64)
        drawn = Sampling().draw(probabilities.log().expand(len(numbers), -1), numbers)
        assert torch.bincount(drawn, minlength=6).tolist() == expected


GOLDEN = [
    [37458596637137, 57650757105427, 33648245768422],
    [251622562667365, 256873276627958, 61778680394354],
]
"""The first 48 bits of numbers of splitmix64."""


def test_the_numbers_are_the_same_in_every_version() -> None:
    found = uniforms(torch.tensor([12345, -1]), 3) * 2**48
    assert found.tolist() == GOLDEN


def test_the_numbers_are_uniform_and_differ_between_samples_and_words() -> None:
    ids = torch.arange(2000)[:, None]
    found = uniforms(stream_keys((0, "sampler", 1), ids), 50)
    assert found.min() >= 0 and found.max() < 1
    histogram = torch.histc(found, 10, 0, 1)
    assert (histogram - 10_000).abs().max() < 500
    assert len(found.flatten().unique()) == found.numel()
    again = uniforms(stream_keys((0, "sampler", 1), ids[::7]), 50)
    assert torch.equal(again, found[::7]), "a stream does not depend on the other samples"
    other = uniforms(stream_keys((0, "sampler", 2), ids), 50)
    assert not (other == found).any()
    assert not torch.equal(stream_keys((0,), torch.tensor([[1, 2]])), stream_keys((0,), torch.tensor([[12]])))
