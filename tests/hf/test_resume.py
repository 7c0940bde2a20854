"""A checkpoint of one layout resumes in every other one, also on another number of ranks. `test_layouts.py` has a choice for `make test`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from meshctl.hf.weights import merged_weights
from meshctl.runtime import checkpoint
from tests.hf import parity
from tests.hf.parity import Case, Trained
from tests.hf.test_layouts import mesh_of, of_all_stages
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


def saves(case: Case, rank: int) -> None:
    for name, sizes in LAYOUTS[dist.get_world_size()].items():
        model = parity.component(case, sizes)
        for step in range(1, SAVED + 1):
            model.update(parity.share_of(model, step, case.packed))
        checkpoint.save(SHARED / case.name / name, "actor", model.state_dict(), mesh_of(model))


def resumes(case: Case, rank: int) -> None:
    for saved, sizes in product(NAMES, LAYOUTS[dist.get_world_size()].values()):
        model = parity.component(case, sizes)
        folder = SHARED / case.name / saved
        model.load_state_dict(checkpoint.load(folder, "actor", model.state_dict(), mesh_of(model)))
        steps = range(SAVED + 1, parity.STEPS + 1)
        losses = [model.update(parity.share_of(model, step, case.packed))["loss"] for step in steps]
        expected = EXPECTED[case]
        assert losses == parity.approx(expected.losses[SAVED:], 1e-8), (case.name, saved, sizes)
        own = dict(parity.whole_tensors(merged_weights(model.module)))
        for name, tensor in of_all_stages(model, own).items():
            torch.testing.assert_close(tensor, expected.weights[name], rtol=0, atol=1e-8)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_checkpoint_of_any_layout_resumes(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A world for each number of ranks, because the groups of a model have threads until their process ends."""
    monkeypatch.setitem(globals(), "SHARED", tmp_path / "shared")
    EXPECTED[case] = parity.by_hand(case.task)
    for function, size in product((saves, resumes), LAYOUTS):

        def check(rank: int, function: Callable[[Case, int], None] = function) -> None:
            function(case, rank)

        (tmp_path / f"{function.__name__} {size}").mkdir()
        found = worlds.run(size, [check], tmp_path / f"{function.__name__} {size}")
        assert found == {"check": worlds.PASSED}
