"""Pins what meshctl uses of peft: a version that changes it fails here, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.hf import ModelError, building, peft_api, transformers_api, weights
from meshctl.hf.peft_api import Lora
from tests.hf.parity import MODELS


def adapted(**lora: Any) -> Any:
    config = transformers_api.read_config(MODELS["llama"], "lm", {})
    model = building.new_model(config, "lm", torch.float64, None, 0)
    peft_api.inject(model, Lora(**{"r": 4, **lora}))
    return model


def with_experts(**changes: Any) -> Any:
    config = transformers_api.read_config(MODELS["qwen3_moe"], "lm", changes)
    model = building.new_model(config, "lm", torch.float64, None, 0)
    model.set_experts_implementation("eager")
    return model


def adapted_names(model: Any) -> set[str]:
    return {peft_api.plain_name(name).removesuffix(".weight") for name in peft_api.layers(model)}


def test_all_linear_leaves_out_the_head() -> None:
    names = adapted_names(adapted())
    assert {name.rpartition(".")[2] for name in names} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert len(names) == 14


def test_all_linear_leaves_out_the_fused_weights_of_experts() -> None:
    model = with_experts()
    peft_api.inject(model, Lora(4))
    last = {name.rpartition(".")[2] for name in adapted_names(model)}
    assert last == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize("target", ["gate_up_proj", "mlp.experts.down_proj"])
def test_a_fused_weight_of_experts_is_adapted_by_its_name(target: str) -> None:
    model = with_experts()
    peft_api.inject(model, Lora(4, target=[target]))
    last = target.rpartition(".")[2]
    assert {name.rpartition(".")[2] for name in adapted_names(model)} == {last}
    shapes = {tuple(one.shape) for one in model.parameters() if one.requires_grad}
    assert shapes == {(16, 32 if last == "gate_up_proj" else 16), (32, 16)}  # 4 experts x r


def test_linear_layers_with_a_name_of_experts_are_adapted_as_well() -> None:
    model = with_experts(mlp_only_layers=[0])
    peft_api.inject(model, Lora(4, target=["down_proj", "up_proj"]))
    assert adapted_names(model) == {
        "model.layers.0.mlp.down_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.1.mlp.experts.down_proj",
    }


def test_a_fused_weight_of_experts_has_no_dropout_and_no_adapter_on_tp() -> None:
    with pytest.raises(ModelError, match="`lora` has no dropout for `down_proj`, a fused weight of experts"):
        peft_api.inject(with_experts(), Lora(4, target=["q_proj", "down_proj"], dropout=0.1))
    model = with_experts()
    model.model.layers[0].mlp.experts._hf_tp_plan = "moe_tp_experts"
    with pytest.raises(
        ModelError, match=r"`model\.layers\.0\.mlp\.experts\.down_proj` with tp: its style in"
    ):
        peft_api.inject(model, Lora(4, target=["down_proj"]))


def test_adapters_that_would_be_exported_wrongly_are_refused() -> None:
    with pytest.raises(ModelError, match="embed_tokens` is none"):
        adapted(target=["q_proj", "embed_tokens"])


def test_a_style_of_tensor_parallelism_that_peft_cannot_adapt_is_refused() -> None:
    config = transformers_api.read_config(MODELS["llama"], "lm", {})
    model = building.new_model(config, "lm", torch.float64, None, 0)
    model.model.layers[0].self_attn.q_proj._hf_tp_plan = "colwise_gather_output"
    with pytest.raises(ModelError, match="its style in the plan is `colwise_gather_output`"):
        peft_api.inject(model, Lora(4))


def test_only_adapters_are_trained_and_have_these_names() -> None:
    trained = {name for name, one in adapted(target=["q_proj"]).named_parameters() if one.requires_grad}
    layer = "model.layers.{}.self_attn.q_proj.lora_{}.default.weight"
    assert trained == {layer.format(number, letter) for number in range(2) for letter in "AB"}
    assert all(peft_api.is_adapter(name) for name in trained)
    assert peft_api.plain_name("a.q_proj.base_layer.weight") == "a.q_proj.weight"


def test_the_factor_of_an_adapter_is_alpha_divided_by_r() -> None:
    [layer, *_] = peft_api.layers(adapted(alpha=6)).values()
    assert torch.equal(peft_api.change_of(layer, torch.ones(4, 3), torch.ones(2, 4)), torch.full((2, 3), 6.0))


@pytest.mark.parametrize(
    "target", ["all-linear", ["o_proj", "gate_up_proj", "down_proj"]], ids=["linear", "experts"]
)
def test_merged_weights_compute_what_the_adapter_does(target: Any) -> None:
    model, plain = with_experts(), with_experts()
    peft_api.inject(model, Lora(4, alpha=6, target=target))
    for layer in peft_api.layers(model).values():
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    ids = torch.tensor([[5, 6, 7]])
    assert not torch.allclose(plain(input_ids=ids).logits, model(input_ids=ids).logits)
    weights.copy_named(weights.held(plain), weights.merged_weights(model))
    torch.testing.assert_close(plain(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_model_without_its_adapters_is_its_base_model() -> None:
    model, ids = adapted(), torch.tensor([[5, 6, 7]])
    with_zero = model(input_ids=ids).logits
    for layer in peft_api.layers(model).values():
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    with peft_api.without_adapters(model):
        torch.testing.assert_close(model(input_ids=ids).logits, with_zero)
    assert not model(input_ids=ids).logits.allclose(with_zero)
