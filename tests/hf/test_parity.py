"""Training on a mesh equals training in one process: loss, gradient norm and weights after some steps. In float64
the differences are below 1e-8, which shows that the code is right; in float32 they are those of rounding.

`make test` runs a choice in two shared worlds; the product of models, layouts and options is nightly.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.hf import parity
from tests.hf.layouts import CARVED, LAYOUTS, OF_EP, OF_PIPELINES
from tests.hf.parity import Case, Gate
from tests.runtime import worlds

CHOICE = {
    "fsdp 2": [Case("llama_tied", packed=True, micro_batch=1, logits_chunk_tokens=5)],
    "tp 2": [Case("llama_tied", lora=True, logits_chunk_tokens=9)],
    "pp 2 x vpp 2": [Case("five layers", packed=True, micro_batch=1, split="cost")],
    "sequence 2": [Case("qwen3", lora=True)],
    "hsdp 2 x 2": [Case("qwen3", frozen=True, micro_batch=1)],
    "ulysses 2 x cp 2": [Case("tied heads", packed=True, micro_batch_tokens=20)],
    "fsdp 2 x tp 2 x ep 2": [Case("qwen3_moe", lora=True, packed=True)],
}
"""Each dim once, alone or with one that shares a part of its code."""
FURTHER_CHOICE = {
    "dp 2": [Case("qwen3", lora=True), Case("llama_tied", micro_batch=1, share_prompts=True)],
    "fsdp 2": [Case("qwen3_moe", lora="experts", micro_batch=3), Case("llama_tied", frozen=True)],
    "tp 2": [Case("qwen3", packed=True, micro_batch=3), Case("llama", frozen=True)],
    "cp 2": [Case("qwen3", lora=True, logits_chunk_tokens=5), Case("sliding window", packed=True)],
    "ulysses 2": [Case("llama_tied", packed=True, micro_batch=3)],
    "pp 2": [
        Case("llama_tied", packed=True, micro_batch=3),
        Case("qwen3", lora=True, pipeline="gpipe"),
        Case("llama", frozen=True),
    ],
    "sequence 2": [Case("llama_tied", packed=True, micro_batch=3)],
    "hsdp 2 x 2": [Case("llama_tied", micro_batch=1, share_prompts=True)],
    "fsdp 2 x tp 2": [Case("qwen3", lora=True, packed=True)],
    "dp 2 x tp 2": [Case("llama", share_prompts=True)],
    "cp 2 x tp 2": [Case("qwen3", lora=True, packed=True)],
    "ulysses 2 x ep 2": [Case("qwen3_moe", micro_batch=3, routers=True)],
    "ulysses 4": [Case("qwen3_moe", routers=True)],
    "dp 2 x fsdp 2 x ep 2": [Case("qwen3_moe", packed=True, routers=True)],
    "fsdp 2 x sequence 2": [Case("qwen3_moe", packed=True)],
    "pp 2 x fsdp 2": [Case("llama_tied", micro_batch_tokens=20, logits_chunk_tokens=5)],
    "pp 2 x tp 2": [Case("qwen3_tied", packed=True)],
    "pp 2 x sequence 2": [Case("five layers", lora=True, packed=True)],
    "pp 2 x dp 2 x tp 2": [Case("five layers", micro_batch=1, split="cost")],
}
"""The choice of `make test-all`."""
CHECKPOINTED = {
    "fsdp 2": "llama_tied",
    "tp 2": "qwen3",
    "sequence 2": "llama_tied",
    "cp 2": "qwen3",
    "ulysses 2": "qwen3",
    "fsdp 2 x ep 2": "qwen3_moe",
    "pp 2": "llama_tied",
    "pp 2 x vpp 2": "five layers",
}
"""Layout -> the model whose backward pass computes activations again, there."""


@dataclass(frozen=True)
class Run:
    """A case on a layout, and the gate that it must pass."""

    layout: str
    case: Case
    dtype: str = "float64"

    @property
    def name(self) -> str:
        return f"{self.layout} {self.case.name} {self.dtype}"

    @property
    def sizes(self) -> dict[str, int]:
        return (LAYOUTS | OF_EP | OF_PIPELINES)[self.layout]

    @property
    def ranks(self) -> int:
        return math.prod(size for dim, size in self.sizes.items() if dim not in CARVED)

    @property
    def gate(self) -> Gate:
        if self.dtype == "float64":
            return self.case.exact
        return parity.SINGLE_LORA_ON_TP if self.case.lora and "tp" in self.sizes else parity.SINGLE


RUNS = 16
"""The number of runs in a world: the process groups of a model have threads until their process ends."""


@cache
def verdicts(runs: tuple[Any, ...]) -> dict[Any, str]:
    """Returns the verdict of each run: a `Run`, or a case with the same attributes. Runs with the same number
    of ranks share a world."""
    expected = {run: parity.by_hand(run.case.task, run.gate) for run in runs}
    found: dict[Any, str] = {}
    for size in (2, 4, 8):
        of_size = [run for run in runs if run.ranks == size]
        for first in range(0, len(of_size), RUNS):
            own = of_size[first : first + RUNS]
            checks = [_check(number, run, expected[run]) for number, run in enumerate(own)]
            with tempfile.TemporaryDirectory() as folder:
                results = worlds.run(size, checks, Path(folder))
            found |= {run: results[check.__name__] for run, check in zip(own, checks, strict=True)}
    return found


def _check(number: int, run: Any, expected: parity.Trained) -> worlds.Check:
    def check(rank: int) -> None:
        parity.check_equal(parity.on_mesh(run.case, run.sizes, run.gate), expected, run.gate)

    check.__name__ = f"check_{number}"
    return check


CHOSEN = tuple(Run(layout, case) for layout, cases in CHOICE.items() for case in cases)
FURTHER = (
    *(Run(layout, case) for layout, cases in FURTHER_CHOICE.items() for case in cases),
    *(
        Run(layout, Case(model, activation_checkpointing=True, packed=True, lora=lora))
        for layout, model in CHECKPOINTED.items()
        for lora in (False, True)
    ),
    Run("tp 2", Case("qwen3", lora=True, packed=True), "float32"),
)


@pytest.mark.slow
@pytest.mark.parametrize("run", CHOSEN, ids=lambda run: run.name)
def test_training_on_a_mesh_equals_one_process(run: Run) -> None:
    assert verdicts(CHOSEN)[run] == worlds.PASSED


@pytest.mark.slow_suite
@pytest.mark.parametrize("run", FURTHER, ids=lambda run: run.name)
def test_training_on_further_meshes_equals_one_process(run: Run) -> None:
    assert verdicts(FURTHER)[run] == worlds.PASSED


def wrong(runs: Sequence[Any]) -> dict[str, str]:
    """Returns the errors of the runs that differ from one process."""
    return {run.name: text for run, text in verdicts(tuple(runs)).items() if text != worlds.PASSED}


OPTIONS: list[dict[str, Any]] = [{}, {"micro_batch": 1}, {"packed": True}, {"lora": True}]
OPTIONS += [{"logits_chunk_tokens": 9}, {"lora": True, "micro_batch": 3, "logits_chunk_tokens": 5}]
OPTIONS += [{"lora": True, "packed": True, "micro_batch_tokens": 24}]
OF_EXPERTS: list[dict[str, Any]] = [{"lora": "experts"}]
OF_EXPERTS += [{"lora": "experts", "packed": True, "micro_batch_tokens": 24}]
OF_EXPERTS += [{"lora": "experts", "logits_chunk_tokens": 9}]
OPTIONS_OF_EP: list[dict[str, Any]] = [{}, {"packed": True, "micro_batch_tokens": 24}, {"lora": True}]
OPTIONS_OF_EP += [{"routers": True, "packed": True}, {"routers": True, "micro_batch": 3, "lora": True}]
OPTIONS_OF_PIPELINES: list[dict[str, Any]] = [{}, {"micro_batch": 1, "split": "cost"}]
OPTIONS_OF_PIPELINES += [{"packed": True, "micro_batch_tokens": 24, "pipeline": "gpipe"}]
OPTIONS_OF_PIPELINES += [{"lora": True, "micro_batch": 3}]
WITH_EXPERTS = ("qwen3_moe", "qwen3_moe_tied", "other experts")
NIGHTLY = [
    *product(["all"], parity.MODELS, LAYOUTS),
    *product(["experts"], WITH_EXPERTS, [name for name, sizes in LAYOUTS.items() if "tp" not in sizes]),
    *product(["ep"], WITH_EXPERTS, [*OF_EP, *(name for name, sizes in LAYOUTS.items() if "pp" not in sizes)]),
    *product(["pipelines"], ["five layers"], OF_PIPELINES),
]
"""Options by name, model and layout."""
NAMED = {"all": OPTIONS, "experts": OF_EXPERTS, "ep": OPTIONS_OF_EP, "pipelines": OPTIONS_OF_PIPELINES}


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("options", "model", "layout"), NIGHTLY)
def test_all_layouts_and_options(options: str, model: str, layout: str, dtype: str) -> None:
    assert wrong([Run(layout, Case(model, **one), dtype) for one in NAMED[options]]) == {}


UNSUPPORTED = {
    (layout, "fused projections", True): "its style in the plan is `rowwise_split_input`"
    for layout in ("tp 2", "fsdp 2 x tp 2", "sequence 2")
}
"""(layout, model, with LoRA) -> the message."""
FURTHER_LAYOUTS = ("fsdp 2", "tp 2", "fsdp 2 x tp 2", "cp 2", "ulysses 2", "sequence 2")


@pytest.mark.nightly
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(("model", "layout"), list(product(parity.FURTHER, FURTHER_LAYOUTS)))
def test_further_architectures_work_or_the_message_names_what_their_plan_lacks(
    model: str, layout: str, lora: bool
) -> None:
    run = Run(layout, Case(model, lora=lora))
    found = verdicts((run,))[run]
    if message := UNSUPPORTED.get((layout, model, lora)):
        assert message in found and "ModelError" in found
    else:
        assert found == worlds.PASSED


@pytest.mark.parametrize(
    "case",
    [
        Case("llama_tied", micro_batch=3, activation_checkpointing=True),
        Case("llama", logits_chunk_tokens=8, activation_checkpointing=True),
        Case("qwen3", lora=True, packed=True),
        Case("qwen3_moe", packed=True, micro_batch_tokens=20),
        Case("llama_tied", micro_batch=3, logits_chunk_tokens=7),
        Case("qwen3", lora=True, packed=True, logits_chunk_tokens=10),
    ],
    ids=lambda case: case.name,
)
def test_one_process_equals_a_loop_written_by_hand(case: Case) -> None:
    parity.check_equal(parity.on_mesh(case, {}), parity.by_hand(case.task))


def test_the_comparison_notices_a_small_difference() -> None:
    case = Case("llama")
    expected = parity.by_hand(case)
    changed = parity.on_mesh(case, {}, optimizer_options={"weight_decay": 0.1001})
    with pytest.raises(AssertionError):
        parity.check_equal(changed, expected)


def test_float32_agrees_to_its_precision() -> None:
    case = Case("qwen3", micro_batch=2)
    found = parity.on_mesh(case, {}, parity.SINGLE)
    parity.check_equal(found, parity.by_hand(case.task, parity.SINGLE), parity.SINGLE)
