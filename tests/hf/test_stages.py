"""The parts of a model on each pipeline stage, and what is refused. Training is in `test_parity.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.hf import ModelError, building, transformers_api
from meshctl.hf import stages as of_model
from meshctl.hf.options import Sizes
from meshctl.hf.stages import StagedModel, Stages, drop_other_stages
from meshctl.recipe.code.architectures import parameters_of
from meshctl.topology.memory import costs_of
from tests.hf.parity import ALL


def config_of(name: str) -> Any:
    return transformers_api.read_config(ALL[name], "lm", {})


def stages_of(name: str, rank: int, split: Any = "count", **sizes: int) -> Stages:
    return Stages.of(config_of(name), "lm", split, Sizes(**sizes), rank)


@pytest.mark.parametrize(
    ("split", "pp", "message"),
    [
        *(
            (split, 2, "or `cost`, or 2 numbers of layers whose sum is 5")
            for split in ("even", [1, 2], [5], [5, 0])
        ),
        ("count", 6, "5 layers for 6 pipeline stages"),
    ],
)
def test_a_division_that_does_not_fit_is_refused(split: Any, pp: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        stages_of("five layers", 0, split, pp=pp)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3", "qwen3_moe"])
def test_validate_and_a_run_divide_layers_by_the_same_costs(name: str) -> None:
    layers, head = of_model.costs_of(config_of(name), "lm")
    experts, used = (ALL[name].get(key, 0) for key in ("num_experts", "num_experts_per_tok"))
    layer, of_head = costs_of(parameters_of(ALL[name]), experts, used)
    assert layers == [layer] * len(layers) and head == of_head


def test_an_architecture_without_a_plan_is_refused() -> None:
    config = transformers_api.read_config(
        {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2}, "lm", {}
    )
    with pytest.raises(ModelError, match="`GPT2LMHeadModel` cannot be divided over pp"):
        of_model.parts_of(transformers_api.outline(config, "lm"))


def test_a_model_that_computes_between_its_layers_and_the_head_is_refused() -> None:
    model = building.new_model(config_of("llama"), building.Build("", dtype=torch.float64))
    drop_other_stages(model, stages_of("llama", 0, pp=2))
    ids = torch.arange(6)[None]
    hidden = StagedModel(model).hidden(0, lambda: model(input_ids=ids, use_cache=False), None)
    assert hidden.shape == (1, 6, 32)
    inner = model.model.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state * 2
        return found

    model.model.forward = changed
    with pytest.raises(ModelError, match="it changes the hidden states outside of its layers"):
        StagedModel(model).hidden(0, lambda: model(input_ids=ids, use_cache=False), None)
