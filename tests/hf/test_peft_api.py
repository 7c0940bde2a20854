"""The parts of a model that an adapter adapts, and its merged weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.hf import ModelError, building, peft_api, transformers_api, weights
from meshctl.hf.peft_api import Lora
from tests.hf.parity import MODELS

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def plain_model(name: str, **changes: Any) -> Any:
    config = transformers_api.read_config(MODELS[name], "lm", changes)
    model = building.new_model(config, building.Build("", dtype=torch.float64))
    if "moe" in name:
        model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("name", "changes", "target", "adapted"),
    [
        ("llama", {}, "all-linear", [{*ATTENTION, *MLP}] * 2),
        ("qwen3_moe", {}, "all-linear", [{*ATTENTION}] * 2),
        ("qwen3_moe", {}, ["gate_up_proj"], [{"gate_up_proj"}] * 2),
        ("qwen3_moe", {}, ["mlp.experts.down_proj"], [{"down_proj"}] * 2),
        ("qwen3_moe", {"mlp_only_layers": [0]}, ["down_proj", "up_proj"], [{"down_proj", "up_proj"}, {"down_proj"}]),
    ],
)  # fmt: skip
def test_the_adapted_weights(
    name: str, changes: dict[str, Any], target: Any, adapted: list[set[str]]
) -> None:
    """`all-linear` leaves out the head and the fused weights of experts, which are adapted by their names, as
    are linear layers with the same names."""
    model = plain_model(name, **changes)
    peft_api.inject(model, Lora(4, target=target))
    names = {peft_api.plain_name(one).removesuffix(".weight") for one in peft_api.layers(model)}
    of_layers = [{one for one in names if one.startswith(f"model.layers.{layer}.")} for layer in range(2)]
    assert [{one.rpartition(".")[2] for one in of_layer} for of_layer in of_layers] == adapted
    assert names == of_layers[0] | of_layers[1]


@pytest.mark.parametrize(
    ("name", "lora", "style", "message"),
    [
        ("qwen3_moe", {"target": ["q_proj", "down_proj"], "dropout": 0.1}, "", "`lora` has no dropout for `down_proj`, a"),
        ("qwen3_moe", {"target": ["down_proj"]}, "mlp.experts", r"experts\.down_proj` with tp: its style in"),
        ("llama", {"target": ["q_proj", "embed_tokens"]}, "", "embed_tokens` is none"),
        ("llama", {}, "self_attn.q_proj", "its style in the plan is `other`"),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted(name: str, lora: dict[str, Any], style: str, message: str) -> None:
    model = plain_model(name)
    if style:
        model.get_submodule(f"model.layers.0.{style}")._hf_tp_plan = "other"
    with pytest.raises(ModelError, match=message):
        peft_api.inject(model, Lora(4, **lora))


@pytest.mark.parametrize(
    "target", ["all-linear", ["o_proj", "gate_up_proj", "down_proj"]], ids=["linear", "experts"]
)
def test_merged_weights_compute_what_the_adapter_does(target: Any) -> None:
    model, plain = plain_model("qwen3_moe"), plain_model("qwen3_moe")
    peft_api.inject(model, Lora(4, alpha=6, target=target))
    for layer in peft_api.layers(model).values():
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    ids = torch.tensor([[5, 6, 7]])
    assert not torch.allclose(plain(input_ids=ids).logits, model(input_ids=ids).logits)
    weights.copy_named(weights.held(plain), weights.merged_weights(model))
    torch.testing.assert_close(plain(input_ids=ids).logits, model(input_ids=ids).logits)
