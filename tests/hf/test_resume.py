"""A checkpoint of one layout resumes in every other one, also on another number of ranks, and the exports are
equal. `test_layouts.py` has a choice for `make test`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from meshctl.hf import Model
from meshctl.runtime import checkpoint
from tests.hf import parity
from tests.hf.parity import Case, Trained
from tests.hf.test_layouts import mesh_of
from tests.runtime import worlds

LAYOUTS = {
    2: {"dp 2": {"dp": 2}, "fsdp 2": {"fsdp": 2}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}},
    4: {
        "hsdp 2 x 2": {"dp": 2, "fsdp": 2},
        "fsdp 2 x tp 2": {"fsdp": 2, "tp": 2},
        "fsdp 2 x cp 2": {"fsdp": 2, "cp": 2},
        "pp 2 x tp 2": {"pp": 2, "tp": 2},
    },
}
"""Number of ranks -> name -> sizes."""
NAMES = [*chain(*LAYOUTS.values())]
CASES = [
    Case("qwen3", micro_batch=3),
    Case("llama_tied", lora=True),
    Case("qwen3_moe_tied", packed=True),
    Case("qwen3_moe", lora=True),
]
SAVED = 2
"""The step after which a checkpoint is saved."""
SHARED, EXPECTED = Path(), dict[Case, Trained]()
"""The folder of all worlds, and the results of one process, set before the processes are forked."""


def saves(size: int) -> worlds.Check:
    def save(rank: int) -> None:
        for case in CASES:
            for name, sizes in LAYOUTS[size].items():
                model = parity.component(case, sizes)
                for step in range(1, SAVED + 1):
                    model.update(parity.share_of(model, step, case.packed))
                checkpoint.save(SHARED / case.name / name, "actor", model.state_dict(), mesh_of(model))

    return save


def resumes(size: int, case: Case) -> worlds.Check:
    def resume(rank: int) -> None:
        for name, sizes in LAYOUTS[size].items():
            for saved in NAMES:
                model = parity.component(case, sizes)
                resume_from(SHARED / case.name / saved, model)
                losses = [
                    model.update(parity.share_of(model, step, case.packed))["loss"]
                    for step in range(SAVED + 1, parity.STEPS + 1)
                ]
                assert losses == parity.approx(EXPECTED[case].losses[SAVED:], 1e-8), (saved, name)
                model.export(export_of(case, saved, name))

    resume.__name__ = f"resume_{CASES.index(case)}"
    return resume


def resume_from(folder: Path, model: Model) -> None:
    model.load_state_dict(checkpoint.load(folder, "actor", model.state_dict(), mesh_of(model)))


def export_of(case: Case, saved: str, resumed: str) -> Path:
    return SHARED / case.name / f"{saved} to {resumed}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[Case, int], str]]:
    global SHARED
    SHARED = tmp_path_factory.mktemp("shared")
    EXPECTED.update({case: parity.by_hand(case.task) for case in CASES})
    for size in LAYOUTS:
        found = worlds.run(size, [saves(size)], tmp_path_factory.mktemp("world"))
        assert set(found.values()) == {worlds.PASSED}, found
    verdicts = {}
    for size in LAYOUTS:
        for case in CASES:
            found = worlds.run(size, [resumes(size, case)], tmp_path_factory.mktemp("world"))
            verdicts[case, size] = " ".join(found.values())
    yield verdicts


@pytest.mark.nightly
@pytest.mark.parametrize("size", LAYOUTS, ids=lambda size: f"{size} ranks")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_checkpoint_of_any_layout_resumes(
    case: Case, size: int, results: dict[tuple[Case, int], str]
) -> None:
    assert results[case, size] == worlds.PASSED


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_exports_are_equal(case: Case, results: dict[tuple[Case, int], str]) -> None:
    first, *others = [
        load_file(export_of(case, saved, name) / "model.safetensors") for saved in NAMES for name in NAMES
    ]
    for other in others:
        assert other.keys() == first.keys()
        for key, tensor in first.items():
            torch.testing.assert_close(other[key], tensor, rtol=0, atol=1e-8)
