"""The same training in every layout: four real processes, with dp, fsdp and both, give what one process
gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from meshctl import DeviceMesh
from tests.recipes.layouts import problems, train, trainer, weights
from tests.runtime import worlds


@pytest.mark.slow_suite
def test_layouts_weigh_samples_alike_and_read_one_anothers_state(tmp_path: Path) -> None:
    def layouts(rank: int) -> None:
        train(tmp_path, rank)

    assert worlds.run(4, [layouts], tmp_path) == {"layouts": worlds.PASSED}
    alone = trainer(DeviceMesh.from_sizes(), 0)
    first = weights(alone)
    for _ in range(3):
        alone.learn(problems())
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"dp", "fsdp", "hsdp"}
    for layout in found.values():
        assert layout["first"] == first
        torch.testing.assert_close(layout["last"], weights(alone), atol=2e-4, rtol=1e-3)
        if layout["from_before"] is not None:
            torch.testing.assert_close(layout["from_before"], layout["last"], atol=2e-4, rtol=1e-3)
