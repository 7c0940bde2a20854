"""The parameters that are computed from a config are those of the class of transformers, with its plan for
tp."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from meshctl.hf.transformers_api import HEADS
from meshctl.recipe.code.architectures import ARCHITECTURES, parameters_of

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "moe_intermediate_size": 20,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 28,
    "pad_token_id": 0,
}
BIASES = {"attention_bias": True, "mlp_bias": True, "use_bias": False, "qkv_bias": False}
LEFT_OUT = ("head_dim", "num_key_value_heads")
CONFIGS: dict[str, dict[str, Any]] = {
    "all sizes": SIZES,
    "tied": {**SIZES, "tie_word_embeddings": True},
    "not tied, other biases": {**SIZES, "tie_word_embeddings": False, **BIASES},
    "one layer without experts": {**SIZES, "mlp_only_layers": [1]},
    "every second layer with experts": {**SIZES, "decoder_sparse_step": 2},
    "with defaults": {
        **{key: size for key, size in SIZES.items() if key not in LEFT_OUT},
        "hidden_size": 512,
        "num_attention_heads": 32,
    },
}
ROWS = ("colwise", "colwise_gather_output", "packed_colwise")
COLUMNS = ("rowwise", "rowwise_split_input")
WITHOUT_SCORES = ("granite",)
"""Architectures for which transformers has no head `score`."""
INCOMPLETE = {("ministral", "with defaults")}
"""Configs that transformers refuses."""


def tp_dim(style: str, shape: torch.Size) -> int | None:
    if style == "embedding_rowwise":
        return 0
    if len(shape) == 1:
        return 0 if style in ROWS else None
    if style in ROWS:
        return len(shape) - 2
    return len(shape) - 1 if style in COLUMNS else None


def of_transformers(values: dict[str, Any], head: str) -> Counter[tuple[Any, ...]]:
    """Returns (name, shape, dim that tp splits, whether an adapter can adapt it) -> number of layers."""
    labels = {"num_labels": 1} if head == "score" else {}
    config = AutoConfig.for_model(**values, **labels)
    with torch.device("meta"):
        model = HEADS[head].from_config(config)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found: Counter[tuple[Any, ...]] = Counter()
    for name, one in model.named_parameters():
        module, key = name.rpartition(".")[0], re.sub(r"\.\d+(?=\.)", ".*", name)
        style = model.tp_plan.get(key) or model.tp_plan.get(key.rpartition(".")[0]) or ""
        found[key, tuple(one.shape), tp_dim(style, one.shape), module in linear and one.ndim == 2] += 1
    return found


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_parameters_are_those_of_transformers(kind: str, config: str) -> None:
    if (kind, config) in INCOMPLETE:
        return
    values = {"model_type": kind, **CONFIGS[config]}
    for head in HEADS:
        if head != "lm" and kind in WITHOUT_SCORES:
            continue
        computed: Counter[tuple[Any, ...]] = Counter()
        for one in parameters_of(values, head):
            computed[one.name, one.shape, one.tp_dim, one.is_linear] += one.layers
        assert computed == of_transformers(values, head), head
