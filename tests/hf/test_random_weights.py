"""Random weights are drawn layer by layer, with the distributions of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from meshctl.hf import building, transformers_api
from tests.hf.parity import ALL

KINDS = [*ALL, "gpt2"]
GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def config_of(name: str) -> transformers_api.Any:
    return transformers_api.read_config({**ALL, "gpt2": GPT2}[name], "lm", {})


def drawn(name: str, seed: int) -> transformers_api.Any:
    return building.new_model(config_of(name), "lm", torch.float32, None, seed)


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_distributed_as_those_of_transformers(name: str) -> None:
    torch.manual_seed(0)
    expected = AutoModelForCausalLM.from_config(config_of(name))
    found = drawn(name, 0)
    assert found.state_dict().keys() == expected.state_dict().keys()
    for key, one in expected.state_dict().items():
        own = found.state_dict()[key]
        if one.std() == 0:
            assert torch.equal(own, one), key
        else:
            bound = 6 * one.numel() ** -0.5
            assert abs(float(own.std() / one.std()) - 1) < bound, key
            assert abs(float(own.mean() - one.mean())) < bound * float(one.std()) * 2, key
    buffers = dict(expected.named_buffers())
    assert {key for key, _ in found.named_buffers()} == buffers.keys()
    for key, one in found.named_buffers():
        assert torch.equal(one, buffers[key]), key


def test_the_seed_and_the_name_determine_the_weights() -> None:
    first, again, other = (drawn("qwen3", seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    layers = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(2)]
    assert not torch.equal(first[layers[0]], first[layers[1]])
    assert not torch.equal(first[layers[0]], other[layers[0]])


def test_the_generator_of_the_process_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    drawn("llama_tied", 3)
    assert torch.equal(torch.rand(1), expected)
