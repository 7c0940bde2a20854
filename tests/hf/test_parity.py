"""Training on a mesh equals training in one process: loss, gradient norm and weights of five steps in fp64.

`make test` runs a choice in two shared worlds; the product of models, layouts and options is nightly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf import parity
from tests.hf.parity import Case
from tests.runtime import worlds

LAYOUTS = {
    "dp 2": {"dp": 2},
    "fsdp 2": {"fsdp": 2},
    "tp 2": {"tp": 2},
    "hsdp 2 x 2": {"dp": 2, "fsdp": 2},
    "fsdp 2 x tp 2": {"fsdp": 2, "tp": 2},
    "dp 2 x tp 2": {"dp": 2, "tp": 2},
}
CHOICE = {
    "dp 2": [Case("llama_tied", micro_batch=3), Case("qwen3", lora=True)],
    "fsdp 2": [Case("llama_tied", packed=True, micro_batch=1), Case("qwen3", lora=True)],
    "tp 2": [Case("qwen3", packed=True, micro_batch=3), Case("llama_tied", lora=True)],
    "hsdp 2 x 2": [Case("llama_tied", micro_batch=1)],
    "fsdp 2 x tp 2": [Case("qwen3", lora=True, packed=True), Case("qwen3_moe", micro_batch_tokens=20)],
    "dp 2 x tp 2": [Case("llama")],
}


def ranks(layout: str) -> int:
    return 4 if "x" in layout else 2


def verdicts(chosen: list[tuple[str, Case]]) -> dict[tuple[str, Case], str]:
    """Returns the verdict of each layout and case; those of one number of ranks share a world."""
    expected = {case.task: parity.by_hand(case.task) for case in {case.task for _, case in chosen}}
    found: dict[tuple[str, Case], str] = {}
    for size in (2, 4):
        own = [one for one in chosen if ranks(one[0]) == size]
        if not own:
            continue
        checks = [_check(number, *one, expected[one[1].task]) for number, one in enumerate(own)]
        with tempfile.TemporaryDirectory() as folder:
            results = worlds.run(size, checks, Path(folder))
        found |= {one: results[check.__name__] for one, check in zip(own, checks, strict=True)}
    return found


def _check(number: int, layout: str, case: Case, expected: parity.Trained) -> Any:
    def check(rank: int) -> None:
        parity.check_equal(parity.on_mesh(case, LAYOUTS[layout]), expected)

    check.__name__ = f"check_{number}"
    return check


CHOSEN = [(layout, case) for layout, cases in CHOICE.items() for case in cases]


@pytest.fixture(scope="module")
def chosen() -> Iterator[dict[tuple[str, Case], str]]:
    yield verdicts(CHOSEN)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "case"), CHOSEN, ids=[f"{layout} {case.name}" for layout, case in CHOSEN])
def test_training_on_a_mesh_equals_one_process(
    layout: str, case: Case, chosen: dict[tuple[str, Case], str]
) -> None:
    assert chosen[layout, case] == worlds.PASSED


OPTIONS: list[dict[str, Any]] = [{}, {"micro_batch": 1}, {"packed": True}, {"lora": True}]
OPTIONS += [{"lora": True, "packed": True, "micro_batch_tokens": 24}]


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "layout"), list(product(parity.MODELS, LAYOUTS)))
def test_all_layouts_and_options(model: str, layout: str) -> None:
    found = verdicts([(layout, Case(model, **options)) for options in OPTIONS])
    assert {case.name: text for (_, case), text in found.items() if text != worlds.PASSED} == {}


UNSUPPORTED = {("tp 2", "fused projections", True): "its style in the plan is `rowwise_split_input`"}
"""(layout, model, with LoRA) -> the message."""


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "layout"), list(product(parity.FURTHER, ("fsdp 2", "tp 2"))))
def test_further_architectures_work_or_the_message_names_what_their_plan_lacks(
    model: str, layout: str
) -> None:
    for lora in (False, True):
        one = (layout, Case(model, lora=lora))
        found, message = verdicts([one])[one], UNSUPPORTED.get((layout, model, lora))
        assert message in found if message else found == worlds.PASSED, found


@pytest.mark.parametrize(
    "case",
    [
        Case("llama_tied", micro_batch=3),
        Case("qwen3", lora=True, packed=True),
        Case("qwen3_moe", packed=True, micro_batch_tokens=20),
    ],
    ids=lambda case: case.name,
)
def test_one_process_equals_a_loop_written_by_hand(case: Case) -> None:
    parity.check_equal(parity.on_mesh(case, {}), parity.by_hand(case.task))


def test_the_comparison_notices_a_small_difference() -> None:
    case = Case("llama")
    expected = parity.by_hand(case)
    changed = parity.on_mesh(case, {}, optimizer_options={"weight_decay": 0.1001, "eps": parity.EPS})
    with pytest.raises(AssertionError):
        parity.check_equal(changed, expected)


def test_float32_agrees_to_its_precision() -> None:
    case = Case("qwen3", micro_batch=2)
    expected = parity.by_hand(case.task, torch.float32, eps=1e-5)
    found = parity.on_mesh(case, {}, dtype="float32", optimizer_options={"eps": 1e-5})
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    assert found.norms == pytest.approx(expected.norms, rel=1e-6)
