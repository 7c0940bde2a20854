"""The distribution from which tokens are drawn, and the streams of random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.hf.sampler import Sampling, stream_keys, uniforms

MASK = (1 << 64) - 1


def logits(rows: int = 5, vocabulary: int = 40) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_temperature_divides_the_logits() -> None:
    found = Sampling(temperature=0.7).logprobs(logits())
    torch.testing.assert_close(found, (logits() / 0.7).log_softmax(-1), rtol=0, atol=1e-12)


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
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    count = 1000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn = Sampling().draw(probabilities.log().expand(count, -1), grid)
    assert torch.bincount(drawn, minlength=6).tolist() == [0, 500, 0, 200, 300, 0]


def test_an_impossible_token_is_never_drawn_at_the_ends() -> None:
    probabilities = torch.tensor([[0.0, 0.3, 0.7, 0.0]]).log()
    largest = 1 - 2.0**-48
    for uniform, token in ((0.0, 1), (largest, 2)):
        assert Sampling().draw(probabilities, torch.tensor([uniform], dtype=torch.float64)).tolist() == [
            token
        ]


def splitmix64(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_the_numbers_are_those_of_splitmix64() -> None:
    keys = [0, 12345, -(1 << 62), -1]
    found = uniforms(torch.tensor(keys), 6)
    for row, key in enumerate(keys):
        states = [(key + number * 0x9E3779B97F4A7C15) & MASK for number in range(1, 7)]
        assert found[row].tolist() == [(splitmix64(state) >> 16) / 2**48 for state in states]


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
