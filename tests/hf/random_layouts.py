"""Random architectures of a few thousand weights, and random layouts of them that `validate` accepts.

Nothing here knows which layouts `hf.Model` supports: sizes of all dims are drawn, written into a recipe, and
kept if `validate` finds no error. A dim that becomes supported is drawn from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from meshctl.recipe.load import load
from meshctl.topology.sizes import DIMS
from tests.hf import parity
from tests.hf.parity import Case, Gate

RANKS = (2, 2, 4, 4, 4, 8)
"""The numbers of ranks, as often as they are drawn: a world of 8 processes is slow on two cores."""
MICRO_BATCHES = (None, None, 2, 3)
TRIES = 400
"""Layouts that are drawn for an architecture before it is given up."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A case, the sizes of its mesh, and the number of ranks."""

    case: Case
    sizes: dict[str, int]
    ranks: int

    @property
    def gate(self) -> Gate:
        return self.case.exact

    @property
    def name(self) -> str:
        drawn = " x ".join(f"{dim} {size}" for dim, size in self.sizes.items())
        return f"{drawn}: {self.case.name} {parity.ALL[self.case.model]}"


def drawn(seed: int, folder: Path) -> Drawn:
    """Returns the case of a seed. Its architecture is added to `parity.ALL`."""
    random = Random(seed)
    while True:
        name = f"random {seed}"
        parity.ALL[name] = values = architecture(random)
        case = _case(random, name, values)
        ranks = random.choice(RANKS)
        for _ in range(TRIES):
            sizes = _sizes(random, ranks)
            if is_accepted(case, sizes, ranks, folder):
                return Drawn(case, sizes, ranks)


def architecture(random: Random) -> dict[str, Any]:
    """Returns the config of a tiny model."""
    heads, head_dim = random.choice([2, 4, 8]), random.choice([4, 8])
    kv_heads = random.choice([size for size in (1, 2, 4, 8) if heads % size == 0])
    kind = random.choice(["llama", "qwen3", "mistral", "gemma3_text", "qwen3_moe", "qwen3_moe", "mixtral"])
    layers = random.randint(1, 4)
    values = {
        "model_type": kind,
        "vocab_size": random.choice([96, 97, 104]),
        "hidden_size": random.choice([16, 24, 32]),
        "intermediate_size": random.choice([32, 48]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": random.random() < 0.4,
    }
    if kind in ("mistral", "gemma3_text"):
        values["sliding_window"] = random.choice([3, 5])
    if kind == "gemma3_text":
        values["layer_types"] = random.choices(["sliding_attention", "full_attention"], k=layers)
    if kind in ("qwen3_moe", "mixtral"):
        count = "num_experts" if kind == "qwen3_moe" else "num_local_experts"
        values |= {count: random.choice([4, 6, 8]), "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return values


def _case(random: Random, name: str, values: dict[str, Any]) -> Case:
    has_experts = "num_experts_per_tok" in values
    return Case(
        name,
        lora=random.random() < 0.3,
        packed=random.random() < 0.4,
        micro_batch=random.choice(MICRO_BATCHES),
        logits_chunk_tokens=random.choice([None, None, 5]),
        routers=has_experts and random.random() < 0.5,
    )


def _sizes(random: Random, ranks: int) -> dict[str, int]:
    """Returns sizes of dims whose product is `ranks`, and sizes of dims that share these ranks."""
    sizes = dict.fromkeys(DIMS, 1)
    while ranks > 1:
        sizes[random.choice(DIMS)] *= 2
        ranks //= 2
    for dim in ("ulysses", "ep", "vpp"):
        if random.random() < 0.4:
            sizes[dim] = random.choice([2, 4])
    if random.random() < 0.5:
        sizes["sequence_parallel"] = True
    return {dim: size for dim, size in sizes.items() if size > 1 or size is True}


def is_accepted(case: Case, sizes: dict[str, int], ranks: int, folder: Path) -> bool:
    """Whether `validate` finds no error in a recipe that trains the model on this layout."""
    found = load(
        recipe_of(arguments_of(case), sizes, ranks, folder), [], folder, environ={}
    ).report.diagnostics
    return not any(one.severity == "error" for one in found)


def arguments_of(case: Case) -> dict[str, Any]:
    """Returns the arguments of `hf.Model` in a recipe."""
    found = {
        "model": parity.ALL[case.model],
        "config": case.config,
        "lora": case.lora_arguments,
        "micro_batch": case.micro_batch,
        "logits_chunk_tokens": case.logits_chunk_tokens,
        "experts": case.experts,
    }
    return {key: value for key, value in found.items() if value is not None}


def recipe_of(arguments: dict[str, Any], sizes: dict[str, int], ranks: int, folder: Path) -> str:
    """Writes a recipe that trains a model on this layout to a folder, and returns the name of its file."""
    recipe = {
        "groups": {"train": {"ranks": ranks, "device_type": "cpu"}},
        "components": {
            "texts": {"_target_": "texts.Texts", "group": "train"},
            "actor": {
                "_target_": "meshctl.hf.Model",
                "group": "train",
                "parallel": parity.keys_of(sizes),
                "args": arguments,
            },
        },
        "pipeline": {
            "batch": {"call": "texts.next", "samples": parity.SAMPLES},
            "metrics": {"call": "actor.update", "in": "batch"},
        },
        "run": {"steps": 2},
    }
    (folder / "texts.py").write_text(TEXTS, encoding="utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return "recipe.yaml"


TEXTS = """
from meshctl import Batch, Component, endpoint


class Texts(Component):
    def __len__(self) -> int:
        return 8

    @endpoint
    def next(self, samples: range) -> Batch: ...
"""
