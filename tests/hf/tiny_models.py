"""A tiny model of each causal architecture that the installed transformers has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "moe_intermediate_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "state_size"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "linear_num_value_heads": 4,
    "initializer_range": 0.2,
    "init_std": 0.2,
    "vocab_size": 264,
    "sliding_window": 16,
    "pad_token_id": 0,
}
"""Key of configs -> its size, where the config of the architecture has this key."""
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
NO_INPUT = {"hidden_size_per_layer_input": 0}
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "deepseek_v4": {"layer_types": ["compressed_sparse_attention", "sliding_attention"]},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "vocab_size_per_layer_input": 264,
    },
    "gemma4_text": NO_INPUT,
    "gemma4_unified_text": NO_INPUT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "plbart": {"decoder_attention_heads": 4},
    "whisper": {"decoder_attention_heads": 4},
    "zamba": {"layers_block_type": ["mamba", "hybrid"], "attention_head_dim": 16, "n_mamba_heads": 2},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"],
        "n_mamba_heads": 4,
        "mamba_d_state": 16,
        "chunk_size": 8,
        "num_mem_blocks": 1,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 8},
}
"""`model_type` -> further values of its config."""
LEFT_OUT = ((), ("head_dim",), ("head_dim", "num_key_value_heads"), ("head_dim", "intermediate_size"))
"""The sizes that are left out, one after another, until an architecture accepts its config."""


class NotBuilt(Exception):
    """No tiny model of an architecture can be built."""


def config_of(kind: type) -> Any:
    """Returns the config of a tiny model, of the language model of a multimodal one."""
    try:
        text = kind().get_text_config()
    except Exception as error:
        raise NotBuilt(str(error)) from error
    known = {key: size for key, size in SIZES.items() if _has(text, key)}
    reason: Exception | None = None
    for left_out in LEFT_OUT:
        sizes = {key: size for key, size in known.items() if key not in left_out}
        try:
            config = type(text)(**{**sizes, **SPECIAL.get(text.model_type, {})})
            with torch.device("meta"):
                outline = AutoModelForCausalLM.from_config(config)
            if sum(one.numel() for one in outline.parameters()) > 5 * 10**6:
                raise NotBuilt("it has other sizes")
            model = AutoModelForCausalLM.from_config(config)
            model(input_ids=torch.arange(3, 9)[None], use_cache=False)
            return config
        except Exception as error:
            reason = error
    raise NotBuilt(str(reason)) from reason


def _has(text: Any, key: str) -> bool:
    """Returns whether a config has a size. One that differs between layers cannot be set for all of them."""
    try:
        return getattr(text, key) is not None or key in LEFT_OUT[2]
    except (AttributeError, RuntimeError):
        return False


def model_of(config: Any) -> Any:
    """Returns a model with large random weights, so that each token depends much on the others."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.config.use_cache = False
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim > 1:
                one.normal_(0, 0.2)
    return model
