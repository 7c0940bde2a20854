"""The estimated bytes on a rank are those that a model really allocates: of weights, gradients and optimizer
state after an update, in two processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.hf import Model
from meshctl.hf.sharding import local_of
from meshctl.recipe.load import load
from meshctl.recipe.rules.memory import model_of
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.memory import RankBytes
from tests.hf import parity
from tests.hf.random_layouts import recipe_of
from tests.runtime import worlds

LIMIT = 0.1
"""The largest difference of an estimate, as a part of the allocated bytes."""
LLAMA = {
    "model_type": "llama",
    "vocab_size": 1002,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 352,
    "mlp_only_layers": [0],
}


@dataclass(frozen=True)
class Case:
    name: str
    sizes: dict[str, int]
    args: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: LLAMA)

    @property
    def arguments(self) -> dict[str, Any]:
        return {"model": self.config, **self.args}


TIED, LORA = {**LLAMA, "tie_word_embeddings": True}, {"r": 16}
CASES = [
    Case("dp", {"dp": 2}),
    Case("fsdp", {"fsdp": 2}),
    Case("tp", {"tp": 2}),
    Case("cp", {"cp": 2}),
    Case("fsdp, LoRA", {"fsdp": 2}, {"lora": LORA}),
    Case("tp, LoRA", {"tp": 2}, {"lora": LORA}),
    Case("fsdp, LoRA on two modules", {"fsdp": 2}, {"lora": {**LORA, "target": ["q_proj", "mlp.up_proj"]}}),
    Case("tp, tied", {"tp": 2}, config=TIED),
    Case("fsdp, tied", {"fsdp": 2}, config=TIED),
    Case("fsdp, score, LoRA", {"fsdp": 2}, {"head": "score", "loss": "bradley_terry", "lora": LORA}),
    Case("fsdp, bfloat16", {"fsdp": 2}, {"dtype": "bfloat16"}),
    Case("fsdp, bfloat16 copies", {"fsdp": 2}, {"compute_dtype": "bfloat16"}),
    Case("dp, SGD", {"dp": 2}, {"optimizer": "SGD"}),
    Case("fsdp, momentum", {"fsdp": 2}, {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}),
    Case("fsdp, experts", {"fsdp": 2}, {"experts": "eager"}, MOE),
    Case("ep, experts", {"fsdp": 2, "ep": 2}, {"experts": "eager"}, MOE),
    Case(
        "fsdp, LoRA of experts",
        {"fsdp": 2},
        {"experts": "eager", "lora": {**LORA, "target": ["q_proj", "down_proj", "gate_up_proj"]}},
        MOE,
    ),
    Case("fsdp, parts", {"fsdp": 2}, {"freeze": ["model.embed_tokens", "model.layers.[01]"]}),
    Case("tp, parts", {"tp": 2}, {"train": ["model.layers.*.mlp", "lm_head"]}),
    Case("tp, experts", {"tp": 2}, {"experts": "eager"}, MOE),
    Case("pp", {"pp": 2}, {"split": [1, 2]}),
    Case("pp, tied", {"pp": 2}, {"lora": {"r": 16}, "split": "cost"}, TIED),
]
ESTIMATES: dict[str, list[RankBytes]] = {}
"""Set before the processes are forked."""


def estimate(case: Case, folder: Path) -> list[RankBytes]:
    """Returns what `show-topology` shows, for each pp rank."""
    loaded = load(recipe_of(case.arguments, case.sizes, 2, folder), [], folder)
    assert not loaded.report.errors, loaded.report.errors
    assert loaded.facts is not None
    found = model_of(loaded.facts, loaded.recipe.components["actor"])
    assert found is not None
    return found.bytes_of_stages


def allocated(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of the memory of tensors. Memory that several tensors share counts once."""
    storages = [local_of(tensor).untyped_storage() for tensor in tensors]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def batch_of(case: Case) -> Batch:
    texts = Ragged.of([torch.arange(1, 9), torch.arange(3, 12)])
    if case.args.get("head") == "score":
        return Batch({"chosen_input_ids": texts, "rejected_input_ids": texts})
    return Batch({"input_ids": texts, "labels": texts})


def bytes_of_a_step(case: Case) -> RankBytes:
    """Returns the bytes on this rank: gradients when the optimizer begins its step, the rest after it."""
    model = Model(**case.arguments)
    model.use_mesh(parity.mesh(case.sizes))
    model.setup()
    optimizer, gradients = model.trainer.optimizer, list[int]()
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(allocated(one.grad for one in parameters if one.grad is not None))
    )
    model.update(batch_of(case))
    states = [value for state in optimizer.state.values() for value in state.values()]
    return RankBytes(
        allocated(model.module.parameters()),
        gradients[0],
        allocated(one for one in states if isinstance(one, Tensor) and one.ndim),
    )


def check_of(case: Case) -> worlds.Check:
    def check(rank: int) -> None:
        stages = ESTIMATES[case.name]
        expected, found = stages[rank * len(stages) // 2], bytes_of_a_step(case)
        for name in ("weights", "gradients", "optimizer"):
            stated, real = getattr(expected, name), getattr(found, name)
            assert abs(stated - real) <= LIMIT * real, (name, stated, real)

    check.__name__ = case.name
    return check


CHOICE = (
    "fsdp, LoRA",
    "tp, tied",
    "cp",
    "fsdp, bfloat16 copies",
    "fsdp, momentum",
    "ep, experts",
    "pp, tied",
)
"""The cases of `make test`. The others are in `make test-all`."""


def wrong(cases: list[Case], folder: Path) -> dict[str, str]:
    ESTIMATES.update({case.name: estimate(case, folder) for case in cases})
    (folder / "world").mkdir()
    found = worlds.run(2, [check_of(case) for case in cases], folder / "world")
    return {name: text for name, text in found.items() if text != worlds.PASSED}


@pytest.mark.slow
def test_a_rank_allocates_the_estimated_bytes(tmp_path: Path) -> None:
    assert wrong([case for case in CASES if case.name in CHOICE], tmp_path) == {}


@pytest.mark.slow_suite
def test_a_rank_allocates_the_estimated_bytes_of_further_cases(tmp_path: Path) -> None:
    assert wrong([case for case in CASES if case.name not in CHOICE], tmp_path) == {}
