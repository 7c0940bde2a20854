"""The parameters of a decoder-only transformer, computed from its config.

    parameters_of({"model_type": "llama", "hidden_size": 64, ...})
    -> model.embed_tokens.weight [320, 64], model.layers.*.self_attn.q_proj.weight [64, 64] of each layer, ...

An architecture is one entry of `ARCHITECTURES`: names of modules, with sizes of the config. Names, shapes and
the dims that tp splits are those of transformers. A test compares them with the classes of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.topology.memory import Parameter, UnknownBytes

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Weights:
    """A parameter that is not a linear layer's and that no adapter adapts."""

    name: str
    shape: tuple[str, ...]
    """The names of sizes, which `_Sizes` looks up."""
    tp_dim: int | None = None


@dataclass(frozen=True)
class Linear(Weights):
    """A linear layer with a weight [rows, columns]."""

    bias: bool | str = False
    """True if it has a bias, or the key of the config that states it."""


Modules = tuple[Weights, ...]


def _attention(bias: bool | str = False, output_bias: bool | str = False) -> Modules:
    return (
        Linear("self_attn.q_proj", ("query", "hidden"), 0, bias),
        Linear("self_attn.k_proj", ("key", "hidden"), 0, bias),
        Linear("self_attn.v_proj", ("key", "hidden"), 0, bias),
        Linear("self_attn.o_proj", ("hidden", "query"), 1, output_bias),
    )


def _gated(
    inner: str = "inner", bias: bool | str = False, prefix: str = "mlp", is_split: bool = True
) -> Modules:
    rows, columns = (0, 1) if is_split else (None, None)
    return (
        Linear(f"{prefix}.gate_proj", (inner, "hidden"), rows, bias),
        Linear(f"{prefix}.up_proj", (inner, "hidden"), rows, bias),
        Linear(f"{prefix}.down_proj", ("hidden", inner), columns, bias),
    )


def _experts(count: str, inner: str) -> Modules:
    return (
        Weights("mlp.gate.weight", (count, "hidden")),
        Weights("mlp.experts.gate_up_proj", (count, f"2 {inner}", "hidden"), 1),
        Weights("mlp.experts.down_proj", (count, "hidden", inner), 2),
    )


def _norms(*names: str, size: str = "hidden", bias: bool = False) -> Modules:
    parts = ("weight", "bias") if bias else ("weight",)
    return tuple(Weights(f"{name}.{part}", (size,)) for name in names for part in parts)


NORMS = _norms("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = _norms("self_attn.q_norm", "self_attn.k_norm", size="head")
GEMMA_NORMS = (*NORMS, *_norms("pre_feedforward_layernorm", "post_feedforward_layernorm"))
OLMO_NORMS = (
    *_norms("self_attn.q_norm", size="query"),
    *_norms("self_attn.k_norm", size="key"),
    *_norms("post_attention_layernorm", "post_feedforward_layernorm"),
)
LLAMA_LAYER = (*_attention("attention_bias", "attention_bias"), *_gated(bias="mlp_bias"), *NORMS)
MISTRAL_LAYER = (*_attention(), *_gated(), *NORMS)
QWEN3_ATTENTION = (*_attention("attention_bias", "attention_bias"), *HEAD_NORMS, *NORMS)
GEMMA_ATTENTION = _attention("attention_bias", "attention_bias")
PHI3_LAYER = (
    Linear("self_attn.o_proj", ("hidden", "query"), 1),
    Linear("self_attn.qkv_proj", ("query + 2 key", "hidden"), 0),
    Linear("mlp.gate_up_proj", ("2 inner", "hidden"), 0),
    Linear("mlp.down_proj", ("hidden", "inner"), 1),
    *NORMS,
)
STARCODER2_LAYER = (
    *_attention("use_bias", "use_bias"),
    Linear("mlp.c_fc", ("inner", "hidden"), 0, "use_bias"),
    Linear("mlp.c_proj", ("hidden", "inner"), 1, "use_bias"),
    *_norms("input_layernorm", "post_attention_layernorm", bias=True),
)
SHARED_EXPERT = (
    *_gated("shared_inner", prefix="mlp.shared_expert", is_split=False),
    Linear("mlp.shared_expert_gate", ("one", "hidden")),
)


@dataclass(frozen=True)
class Architecture:
    layer: Modules
    """The modules of a layer."""
    defaults: Values = field(default_factory=dict)
    """The defaults of the config's class, for keys that configs leave out."""
    dense: Modules = ()
    """The modules of the layers without experts, in models that have both kinds."""
    norm: Modules = _norms("norm")
    """The modules after the last layer."""


TIE = "tie_word_embeddings"
KV_8, TIED = {"num_key_value_heads": 8}, {TIE: True}
ARCHITECTURES = {
    "llama": Architecture(LLAMA_LAYER),
    "granite": Architecture(LLAMA_LAYER),
    "smollm3": Architecture(LLAMA_LAYER, {**TIED, "num_key_value_heads": 4}),
    "mistral": Architecture(MISTRAL_LAYER, KV_8),
    "ministral": Architecture(MISTRAL_LAYER, KV_8),
    "ministral3": Architecture(MISTRAL_LAYER, {**KV_8, "head_dim": 128}),
    "mixtral": Architecture((*_attention(), *_experts("num_local_experts", "inner"), *NORMS), KV_8),
    "qwen2": Architecture((*_attention(True), *_gated(), *NORMS), {"num_key_value_heads": 32}),
    "qwen2_moe": Architecture(
        (*_attention("qkv_bias"), *_experts("num_experts", "expert_inner"), *SHARED_EXPERT, *NORMS),
        {"num_key_value_heads": 16, "qkv_bias": True},
        dense=(*_attention("qkv_bias"), *_gated(), *NORMS),
    ),
    "qwen3": Architecture((*QWEN3_ATTENTION, *_gated()), {"num_key_value_heads": 32, "head_dim": 128}),
    "qwen3_moe": Architecture(
        (*QWEN3_ATTENTION, *_experts("num_experts", "expert_inner")),
        {"num_key_value_heads": 4},
        dense=(*QWEN3_ATTENTION, *_gated()),
    ),
    "gemma": Architecture(
        (*GEMMA_ATTENTION, *_gated(), *NORMS), {**TIED, "num_key_value_heads": 16, "head_dim": 256}
    ),
    "gemma2": Architecture(
        (*GEMMA_ATTENTION, *_gated(), *GEMMA_NORMS), {**TIED, "num_key_value_heads": 4, "head_dim": 256}
    ),
    "gemma3_text": Architecture(
        (*GEMMA_ATTENTION, *_gated(), *GEMMA_NORMS, *HEAD_NORMS),
        {**TIED, "num_key_value_heads": 4, "head_dim": 256},
    ),
    "phi3": Architecture(PHI3_LAYER),
    "olmo2": Architecture((*GEMMA_ATTENTION, *_gated(), *OLMO_NORMS)),
    "olmo3": Architecture((*GEMMA_ATTENTION, *_gated(), *OLMO_NORMS)),
    "seed_oss": Architecture(
        (*_attention("attention_bias", "attention_out_bias"), *_gated(bias="mlp_bias"), *NORMS),
        {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    ),
    "starcoder2": Architecture(
        STARCODER2_LAYER,
        {**TIED, "num_key_value_heads": 2, "use_bias": True},
        norm=_norms("norm", bias=True),
    ),
}
"""`model_type` -> architecture."""
KEYS = {
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "vocabulary": "vocab_size",
    "expert_inner": "moe_intermediate_size",
    "shared_inner": "shared_expert_intermediate_size",
    "num_experts": "num_experts",
    "num_local_experts": "num_local_experts",
}
"""Size -> its key in configs."""


def linear_layers(model_type: str) -> list[str]:
    """Returns the names of the linear layers in a layer of an architecture; none if it is not in the
    table."""
    return [module.name for module in _modules(model_type) if isinstance(module, Linear)]


def fused_weights(model_type: str) -> list[str]:
    """Returns the names of the fused weights of experts in a layer of an architecture."""
    return [module.name for module in _modules(model_type) if len(module.shape) == 3]


def _modules(model_type: str) -> Modules:
    known = ARCHITECTURES.get(model_type)
    return tuple(dict.fromkeys((*known.layer, *known.dense))) if known else ()


def is_tied(values: Values, head: object) -> bool:
    """Returns whether the head of a model with these values is its embedding. False if the architecture is
    not in the table."""
    kind = values.get("model_type")
    architecture = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    return architecture is not None and head == "lm" and bool(_config(architecture, values).get(TIE))


def _config(architecture: Architecture, values: Values) -> Values:
    return {**architecture.defaults, **{key: value for key, value in values.items() if value is not None}}


def parameters_of(values: Values, head: str = "lm") -> list[Parameter]:
    """Returns the parameters of a model whose config has these values. The head is `lm`, logits of the
    vocabulary, `score`, one score, or `classify`, logits of labels. Raises `UnknownBytes` if the architecture
    is not in the table, or a size is missing."""
    kind = values.get("model_type")
    architecture = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if architecture is None:
        named = f"the architecture `{kind}` is not known" if kind else "its config has no `model_type`"
        raise UnknownBytes(named)
    return list(_parameters(architecture, _Sizes(_config(architecture, values)), head))


def _parameters(architecture: Architecture, sizes: _Sizes, head: str) -> Iterator[Parameter]:
    table = sizes.number("vocabulary"), sizes.number("hidden")
    yield Parameter("model.embed_tokens.weight", table, tp_dim=0)
    layers = sizes.number("layers")
    sparse = sizes.sparse_layers(layers) if architecture.dense else layers
    for modules, count in ((architecture.layer, sparse), (architecture.dense, layers - sparse)):
        for module in modules if count else ():
            yield from _of_module(module, sizes, count, "model.layers.*.")
    for module in architecture.norm:
        yield from _of_module(module, sizes, 1, "model.")
    if head != "lm":
        named = sizes.config.get("id2label") or (0, 1)
        labels = 1 if head == "score" else sizes.config.get("num_labels") or len(named)
        yield Parameter("score.weight", (labels, table[1]), is_linear=True)
    elif not sizes.config.get(TIE):
        yield Parameter("lm_head.weight", table, tp_dim=0, is_linear=True)


def _of_module(module: Weights, sizes: _Sizes, layers: int, prefix: str) -> Iterator[Parameter]:
    name, shape = f"{prefix}{module.name}", tuple(sizes.number(size) for size in module.shape)
    if not isinstance(module, Linear):
        yield Parameter(name, shape, layers, module.tp_dim)
        return
    yield Parameter(f"{name}.weight", shape, layers, module.tp_dim, is_linear=True)
    has_bias = sizes.config.get(module.bias, False) if isinstance(module.bias, str) else module.bias
    if has_bias:
        yield Parameter(f"{name}.bias", shape[:1], layers, 0 if module.tp_dim == 0 else None)


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a config, by the names that the table uses."""

    config: Values

    def number(self, size: str) -> int:
        """Returns a size: a number of the config, or one that is computed from them. Raises
        `UnknownBytes` if the config has no such number."""
        match size:
            case "one":
                return 1
            case "head":
                return self._stated("head_dim") or self.number("hidden") // self.number("heads")
            case "query":
                return self.number("heads") * self.number("head")
            case "key":
                return (self._stated("num_key_value_heads") or self.number("heads")) * self.number("head")
            case "query + 2 key":
                return self.number("query") + 2 * self.number("key")
        if size.startswith("2 "):
            return 2 * self.number(size.removeprefix("2 "))
        if number := self._stated(KEYS[size]):
            return number
        raise UnknownBytes(f"its config has no `{KEYS[size]}`")

    def _stated(self, key: str) -> int:
        value = self.config.get(key)
        return value if type(value) is int and value > 0 else 0

    def sparse_layers(self, layers: int) -> int:
        """Returns how many layers have experts, in models of Qwen that have layers without them."""
        step, dense = self._stated("decoder_sparse_step") or 1, self.config.get("mlp_only_layers")
        listed = (
            {layer for layer in dense if type(layer) is int} if isinstance(dense, (list, tuple)) else set()
        )
        return layers // step - sum(0 <= layer < layers and (layer + 1) % step == 0 for layer in listed)
