"""Training of tiny models in one process, by a loop written here, and by `hf.Model` on a mesh.

The loop uses plain transformers, one text at a time and without padding, so that it shares nothing with
`hf.Model` but the initial weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from meshctl.hf import Model, building, peft_api, transformers_api, weights
from meshctl.hf.peft_api import Lora
from meshctl.hf.sharding import whole_of
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.memory import Selection
from meshctl.topology.mesh import DeviceMesh
from tests.examples import examples

STEPS = examples(2, 5)
SAMPLES, LR, CLIP = 8, 1e-3, 0.5
COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **COMMON},
    "llama_tied": {"model_type": "llama", **COMMON, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **COMMON},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
}
MODELS |= {f"{name}_tied": {**MODELS[name], "tie_word_embeddings": True} for name in ("qwen3", "qwen3_moe")}
WITHOUT_HEAD_DIM = {key: value for key, value in COMMON.items() if key != "head_dim"}
FURTHER: dict[str, dict[str, Any]] = {
    "biases": {"model_type": "qwen2", **WITHOUT_HEAD_DIM},
    "sliding window": {"model_type": "mistral", **COMMON, "sliding_window": 4},
    "tied heads": {
        "model_type": "gemma3_text",
        **COMMON,
        "tie_word_embeddings": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "uneven shards": {
        "model_type": "qwen3_moe",
        **COMMON,
        "vocab_size": 99,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 18,
    },
    "other experts": {
        "model_type": "mixtral",
        **COMMON,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "fused projections": {"model_type": "phi3", **WITHOUT_HEAD_DIM, "pad_token_id": 0},
    "five layers": {"model_type": "qwen3", **COMMON, "num_hidden_layers": 5, "tie_word_embeddings": True},
}
"""Architectures of other kinds."""
ALL = {**MODELS, **FURTHER}
ROUTER_LOSS = 0.5
"""The coefficient of the loss of routers: large, so that an error of it shows."""
LORA = {"r": 4, "alpha": 8, "target": ["q_proj", "k_proj", "v_proj", "o_proj"]}
LORA_OF_EXPERTS = {**LORA, "target": ["q_proj", "gate_up_proj", "down_proj"]}


@dataclass(frozen=True)
class Gate:
    """A dtype, and the largest differences that count as equal."""

    dtype: str
    eps: float
    """`eps` of AdamW. In float32, a small one turns rounding noise in tiny gradients into whole steps."""
    losses: float
    norms: float
    weights: float
    """Relative to the largest element of each tensor."""


EXACT = Gate("float64", 1e-8, losses=1e-8, norms=1e-8, weights=1e-8)
ROUNDED = Gate("float64", 1e-5, losses=1e-6, norms=1e-6, weights=2e-5)
"""For an architecture that computes norms or routers in float32, whatever the dtype of its weights."""
SINGLE = Gate("float32", 1e-5, losses=1e-6, norms=1e-6, weights=2e-5)
SINGLE_LORA_ON_TP = replace(SINGLE, losses=1e-5, norms=1e-5)


FROZEN = ("model.embed_tokens", "model.layers.0.mlp", "*norm.weight")


@dataclass(frozen=True)
class Case:
    model: str
    lora: bool | Literal["experts"] = False
    packed: bool = False
    micro_batch: int | None = None
    micro_batch_tokens: int | None = None
    logits_chunk_tokens: int | None = None
    share_prompts: bool = False
    activation_checkpointing: bool = False
    pipeline: str = "1f1b"
    split: str | tuple[int, ...] = "count"
    routers: bool = False
    """Whether the loss of the routers is added."""
    frozen: bool = False
    """Whether the parts `FROZEN` are not trained."""

    @property
    def config(self) -> dict[str, Any]:
        if not self.routers:
            return {}
        return {"output_router_logits": True, "router_aux_loss_coef": ROUTER_LOSS}

    @property
    def name(self) -> str:
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)[1:]}
        marks = [f"{name}={value}" for name, (value, default) in given.items() if value != default]
        return " ".join([self.model, *marks]).replace("=True", "")

    @property
    def exact(self) -> Gate:
        return ROUNDED if ALL[self.model]["model_type"] in ("gemma3_text", "mixtral") else EXACT

    @property
    def task(self) -> Case:
        """The case without what must not change a result."""
        return Case(self.model, lora=self.lora, packed=self.packed, routers=self.routers, frozen=self.frozen)

    @property
    def experts(self) -> str | None:
        return "eager" if {"num_experts_per_tok", "top_k_experts"} & ALL[self.model].keys() else None

    @property
    def lora_arguments(self) -> dict[str, Any] | None:
        if not self.lora:
            return None
        if self.lora == "experts":
            return LORA_OF_EXPERTS
        return LORA if self.model in MODELS else {**LORA, "target": "all-linear"}


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def whole_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, whole tensor) in order. It gathers one tensor at a time. All ranks iterate together."""
    for name, tensor in tensors:
        yield name, whole_of(tensor)


def batch_of(step: int, packed: bool) -> Batch:
    """Returns the samples of a step; of the packed ones, each row has two texts."""
    generator = torch.Generator().manual_seed(step)
    rows, labels, positions = [], [], []
    for sample in range(SAMPLES):
        sizes = (
            [4 + (sample * 3 + step) % 7, 3 + (sample + step) % 5]
            if packed
            else [4 + (sample * 5 + step) % 9]
        )
        ids = [torch.randint(1, 96, (size,), generator=generator) for size in sizes]
        wanted = [text.clone() for text in ids]
        for text in wanted:
            text[:1] = -100
        if sample % 3 == 0:
            wanted[0][:3] = -100
        rows.append(torch.cat(ids))
        labels.append(torch.cat(wanted))
        positions.append(torch.cat([torch.arange(size) for size in sizes]))
    columns = {"input_ids": Ragged.of(rows), "labels": Ragged.of(labels)}
    if packed:
        columns["position_ids"] = Ragged.of(positions)
    return Batch(columns, ids=torch.arange(SAMPLES) + SAMPLES * step)


def loss_of_routers(routers: list[Any]) -> Tensor:
    """Returns the load-balancing loss for the logits of each text and layer, `[tokens, experts]`: the mean over
    all tokens and layers of what is chosen, times that of the probabilities."""
    every = torch.cat([logits for layers in routers for logits in layers]).softmax(-1)
    chosen = torch.nn.functional.one_hot(every.topk(2).indices, every.shape[-1]).sum(1).to(every.dtype)
    return every.shape[-1] * (chosen.mean(0) * every.mean(0)).sum()


def texts_in(batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """Returns (ids, labels) of each text."""
    found = []
    for row in range(len(batch)):
        ids, labels = batch["input_ids"][row], batch["labels"][row]
        starts = [0]
        if "position_ids" in batch:
            starts = (batch["position_ids"][row] == 0).nonzero().flatten().tolist()
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            found.append((ids[start:stop], labels[start:stop]))
    return found


def decayed(model: Any) -> list[dict[str, Any]]:
    """Returns the trained parameters in two groups: those with weight decay, and norms and biases without."""
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, one in model.named_parameters():
        if one.requires_grad:
            groups[one.ndim > 1 and "bias" not in name].append(one)
    return [{"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}]


@cache
def by_hand(case: Case, gate: Gate = EXACT) -> Trained:
    """Trains in one process."""
    config = transformers_api.read_config(ALL[case.model], "lm", case.config)
    model = building.new_model(config, building.Build("", dtype=getattr(torch, gate.dtype)))
    if case.experts:
        model.set_experts_implementation(case.experts)
    if case.lora_arguments:
        peft_api.inject(model, Lora.of(case.lora_arguments))
        building.reset_adapter(model, 0)
    if case.frozen:
        building.select(model, Selection(FROZEN))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(decayed(model), lr=LR, weight_decay=0.1, eps=gate.eps)
    found = Trained()
    for step in range(1, STEPS + 1):
        texts = texts_in(batch_of(step, case.packed))
        count = sum(int((labels[1:] != -100).sum()) for _, labels in texts)
        made = [model(input_ids=ids[None]) for ids, _ in texts]
        pairs = [(one.logits[0, :-1], labels[1:]) for one, (_, labels) in zip(made, texts, strict=True)]
        loss = sum(torch.nn.functional.cross_entropy(*pair, reduction="sum") for pair in pairs)
        if case.routers:
            loss = loss + count * ROUTER_LOSS * loss_of_routers([one.router_logits for one in made])
        loss.backward()
        total = float(loss.detach())
        # The gradient of the sum is divided, not the loss: norms round to float32 in all architectures here,
        # and a factor that is no power of 2 would change what is rounded.
        for one in trained:
            if one.grad is not None:  # an indexer of tokens has none
                one.grad /= count
        found.norms.append(float(torch.nn.utils.clip_grad_norm_(trained, CLIP)))
        found.losses.append(total / count)
        optimizer.step()
        optimizer.zero_grad()
    found.weights = {name: tensor.clone() for name, tensor in weights.merged_weights(model)}
    return found


OF_MODEL = ("micro_batch", "micro_batch_tokens", "logits_chunk_tokens", "share_prompts")
OF_MODEL += ("activation_checkpointing", "pipeline", "split")
"""The fields of a case that are arguments of `hf.Model`."""


def component(case: Case, sizes: dict[str, int], gate: Gate = EXACT, **more: Any) -> Model:
    made = Model(
        ALL[case.model],
        config=case.config,
        dtype=gate.dtype,
        lora=case.lora_arguments,
        freeze=FROZEN if case.frozen else (),
        lr=LR,
        optimizer_options={"weight_decay": 0.1, "eps": gate.eps, **more.pop("optimizer_options", {})},
        clip=CLIP,
        experts=case.experts,
        **{name: getattr(case, name) for name in OF_MODEL},
        **more,
    )
    made.use_mesh(mesh(sizes))
    made.setup()
    return made


def made(model: str | dict[str, Any], sizes: dict[str, Any] | None = None, **arguments: Any) -> Model:
    """Returns a model of `ALL`, or of a config, on a mesh."""
    found = Model(ALL[model] if isinstance(model, str) else model, **arguments)
    found.use_mesh(mesh(sizes or {}))
    found.setup()
    return found


def keys_of(sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns sizes by the keys of `parallel`."""
    return {dim if dim == "sequence_parallel" else f"{dim}_size": size for dim, size in sizes.items()}


def mesh(sizes: dict[str, Any]) -> DeviceMesh:
    return DeviceMesh.from_sizes(**keys_of(sizes))


def label_logprobs(module: Any, batch: Batch, temperature: float = 1.0) -> list[Tensor]:
    """Returns the log-probability of the label of each token for each text alone: 0 at the first token, and
    where the label is -100."""
    found = []
    for ids, labels in texts_in(batch):
        with torch.no_grad():
            logs = (module(input_ids=ids[None]).logits[0, :-1] / temperature).log_softmax(-1)
        picked = logs.gather(1, ids[1:, None])[:, 0].masked_fill(labels[1:] == -100, 0)
        found.append(torch.cat([torch.zeros(1, dtype=logs.dtype), picked]))
    return found


def share_of(model: Model, step: int, packed: bool) -> Batch:
    """Returns the samples of this data rank."""
    return share(model, batch_of(step, packed))


def share(model: Model, batch: Batch) -> Batch:
    mesh, rank = model.mesh, model.rank
    part = mesh.get_slice(len(batch), rank) if mesh.world_size > 1 else slice(0, len(batch))
    own = batch.between(part.start, part.stop)
    own.most = -(-len(batch) // mesh.data_size)
    return own


def on_mesh(case: Case, sizes: dict[str, int], gate: Gate = EXACT, **more: Any) -> Trained:
    model = component(case, sizes, gate, **more)
    return trained(model, [batch_of(step, case.packed) for step in range(1, STEPS + 1)])


def trained(model: Model, batches: Iterable[Batch]) -> Trained:
    """Trains a model on this data rank's share of each batch."""
    found = Trained()
    for batch in batches:
        metrics = model.update(share(model, batch))
        found.losses.append(metrics["loss"])
        found.norms.append(metrics["grad_norm"])
    merged = whole_tensors(weights.merged_weights(model.module))
    own = {name: tensor.clone() for name, tensor in merged}
    for stage in model.collective("pp").all_gather_object(own):
        assert all(torch.equal(tensor, found.weights.get(name, tensor)) for name, tensor in stage.items())
        found.weights |= stage
    return found


def check_equal(found: Trained, expected: Trained, gate: Gate = EXACT) -> None:
    assert found.losses == approx(expected.losses, gate.losses), (found.losses, expected.losses)
    assert found.norms == approx(expected.norms, gate.norms), (found.norms, expected.norms)
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        difference = float((found.weights[name] - tensor).abs().max())
        assert difference <= gate.weights * float(tensor.abs().max()), (name, difference)


def approx(values: list[float], close: float) -> Any:
    import pytest

    return pytest.approx(values, rel=close)
