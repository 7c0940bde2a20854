"""Random weights are drawn layer by layer, with the distributions of transformers. And parts of transformers that no
test of a model reaches."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.distributed.tensor import _redistribute
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import Chunk, WeightConverter

from meshctl.hf import ModelError, building, transformers_api
from meshctl.hf.building import check_tied
from meshctl.hf.options import Sizes
from meshctl.topology.memory import are_divisible
from tests.hf.parity import ALL, MODELS

KINDS = [*ALL, "gpt2"]
GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def config_of(name: str) -> transformers_api.Any:
    return transformers_api.read_config({**ALL, "gpt2": GPT2}[name], "lm", {})


def drawn(name: str, seed: int) -> transformers_api.Any:
    return building.new_model(config_of(name), building.Build("", dtype=torch.float32, seed=seed))


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


def outline(name: str) -> transformers_api.Any:
    return transformers_api.outline(transformers_api.read_config(MODELS[name], "lm", {}), "lm")


def test_the_logger_that_would_warn_of_each_redistribution_is_silenced() -> None:
    assert _redistribute.logger.name == transformers_api.REDISTRIBUTION_LOG
    transformers_api.quiet()
    assert not _redistribute.logger.isEnabledFor(logging.WARNING)


def test_tied_parameters_without_equal_shards_are_refused() -> None:
    tied = outline("llama_tied")
    for sizes in (Sizes(fsdp=5), Sizes(fsdp=2, tp=64)):
        with pytest.raises(
            ModelError, match=r"its 96 rows have no equal shards on \d+ ranks \(fsdp \d(, tp \d+)?\)"
        ):
            check_tied(tied, sizes)
    for model, sizes in ((outline("llama"), Sizes(fsdp=5)), (tied, Sizes(dp=5)), (tied, Sizes(tp=5))):
        check_tied(model, sizes)
    check_tied(tied, Sizes(fsdp=3, tp=2))


def test_a_layer_is_a_unit_where_files_join_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = WeightConverter("qkv.weight", ["q.weight", "k.weight"], operations=[Chunk(dim=0)])
    monkeypatch.setattr(transformers_api, "get_model_conversion_mapping", lambda *_, **__: [joined])
    disk = transformers_api.DiskFormat(outline("llama").config, "lm", torch.float32)
    names = ["model.layers.1.q.weight", "norm.weight", "model.layers.1.k.weight", "model.layers.11.q.weight"]
    assert disk.units(names) == [(names[0], names[2]), (names[1],), (names[3],)]


@pytest.mark.parametrize(("rows", "is_divisible"), [(96, True), (97, False), (98, True), (105, False)])
def test_rows_that_fsdp_can_shard_after_tp(rows: int, is_divisible: bool) -> None:
    """torch has the sizes of all shards from one size: 97 rows are 49 and 48, and 13 and 12 for 4 ranks."""
    assert are_divisible(rows, 2, 4) == is_divisible
    assert are_divisible(rows, 2, 1)
