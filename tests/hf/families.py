"""The families of 2026, as tiny models, and what each layout does with them. `test_families.py` checks each
cell, and `docs/reference.py` writes the table of docs/models.md. This file imports nothing."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS}
WITHOUT_HEAD_DIM = {key: value for key, value in COMMON.items() if key != "head_dim"}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3.5": {"model_type": "qwen3_5_text", **COMMON, **HYBRID},
    "Qwen3.5 MoE": {
        "model_type": "qwen3_5_moe_text",
        **{**COMMON, **HYBRID, **EXPERTS},
        **{"num_experts": 4, "shared_expert_intermediate_size": 16},
    },
    "Qwen3-Next": {
        "model_type": "qwen3_next",
        **{**COMMON, **HYBRID, **EXPERTS},
        **{"num_experts": 4, "shared_expert_intermediate_size": 16},
    },
    "Gemma 4": {
        "model_type": "gemma4_text",
        **{"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
        **{**COMMON, "global_head_dim": 8, "hidden_size_per_layer_input": 0, "sliding_window": 16},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Llama 4": {
        "model_type": "llama4_text",
        **{**COMMON, "num_local_experts": 4, "intermediate_size_mlp": 64, "num_experts_per_tok": 1},
        "interleave_moe_layer_step": 2,
    },
    "gpt-oss": {"model_type": "gpt_oss", **COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepSeek V3": {
        "model_type": "deepseek_v3",
        **{**WITHOUT_HEAD_DIM, **LATENT, **ROUTED, "first_k_dense_replace": 1},
    },
    "DeepSeek V4": {
        "model_type": "deepseek_v4",
        **{**COMMON, **ROUTED, "q_lora_rank": 16, "qk_rope_head_dim": 4, "o_groups": 2, "o_lora_rank": 16},
        **{"index_n_heads": 4, "index_head_dim": 8, "index_topk": 4, "sliding_window": 16},
        "layer_types": ["compressed_sparse_attention", "sliding_attention"],
    },
    "GLM 5": {
        "model_type": "glm_moe_dsa",
        **{**WITHOUT_HEAD_DIM, **LATENT, **ROUTED},
        **{"index_n_heads": 4, "index_head_dim": 16, "index_topk": 4, "mlp_layer_types": ["dense", "sparse"]},
    },
    "Phi 4": {"model_type": "phi3", **WITHOUT_HEAD_DIM},
    "Granite 4": {
        "model_type": "granitemoehybrid",
        **{
            **WITHOUT_HEAD_DIM,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
        },
        **{
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
        },
    },
    "Olmo 3": {
        "model_type": "olmo3",
        **{**WITHOUT_HEAD_DIM, "sliding_window": 16},
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
"""Family -> config of a tiny model. Phi 4 has the architecture of Phi 3."""
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, bool]]] = {
    "dp": ({"dp": 2}, {}),
    "fsdp": ({"fsdp": 2}, {}),
    "tp": ({"tp": 2}, {}),
    "cp": ({"cp": 2}, {}),
    "ulysses": ({"fsdp": 2, "ulysses": 2}, {}),
    "ep": ({"fsdp": 2, "ep": 2}, {}),
    "pp": ({"pp": 2}, {}),
    "LoRA": ({"fsdp": 2}, {"lora": True}),
    "LoRA, tp": ({"tp": 2}, {"lora": True}),
    "packed": ({"fsdp": 2}, {"packed": True}),
}
"""Layout -> the sizes of its mesh on two ranks, and fields of `parity.Case`."""
ROUNDING = {name for name in FAMILIES if name not in ("gpt-oss", "Phi 4", "Olmo 3")}
"""The families that compute norms, states or routers in float32, whatever the dtype of their weights."""
EQUAL = "="
_STATE = {"cp": "MC418", "ulysses": "MC418", "packed": "MC470"}
"""The cells of architectures in which a state passes from token to token."""
REFUSED: dict[str, dict[str, str]] = {
    "Qwen3.5": {**_STATE, "ep": "MC419", "LoRA, tp": "MC451"},
    "Qwen3.5 MoE": {**_STATE, "LoRA, tp": "MC451"},
    "Qwen3-Next": {**_STATE, "LoRA, tp": "MC451"},
    "Gemma 4": {"ep": "MC419"},
    "Llama 4": {"tp": "MC439", "LoRA, tp": "MC439", "ep": "MC419", "pp": "MC469"},
    "gpt-oss": _STATE,
    "DeepSeek V4": {**_STATE, "pp": "MC469"},
    "GLM 5": {"cp": "MC418", "ulysses": "MC418", "pp": "MC469", "LoRA, tp": "MC451"},
    "Phi 4": {"ep": "MC419", "LoRA, tp": "MC451"},
    "Granite 4": {**_STATE, "pp": "MC469"},
    "Olmo 3": {"ep": "MC419", "LoRA, tp": "MC451"},
}
"""Family -> layout -> the code with which `validate` refuses it. All others equal one process."""


SAMPLED = "sampler"
"""The column of `hf.Sampler`, whose log-probabilities equal those of the trained model."""
for _name in ("Qwen3.5", "Qwen3.5 MoE", "Qwen3-Next", "DeepSeek V4", "GLM 5", "Granite 4"):
    REFUSED[_name][SAMPLED] = "MC471"


def cell(family: str, layout: str) -> str:
    """Returns what a layout, or `SAMPLED`, does with a family: `EQUAL`, or a code."""
    return REFUSED.get(family, {}).get(layout, EQUAL)
