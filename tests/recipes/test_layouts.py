"""The same training in every layout: four real processes, with dp, fsdp and both, give what one process
gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from meshctl import DeviceMesh
from tests.recipes.conftest import RECIPES
from tests.recipes.layouts import problems, trainer, weights


@pytest.mark.slow
def test_layouts_weigh_samples_alike_and_read_one_anothers_state(tmp_path: Path) -> None:
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(RECIPES), str(RECIPES.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.recipes.layouts", str(rank), str(tmp_path)],
            env=environ,
            stdout=subprocess.PIPE,
        )
        for rank in range(4)
    ]
    try:
        output, _ = ranks[0].communicate(timeout=120)
        assert [rank.wait(60) for rank in ranks] == [0, 0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()

    alone = trainer(DeviceMesh.from_sizes(), 0)
    first = weights(alone)
    for _ in range(3):
        alone.learn(problems())
    found = json.loads(output)
    assert set(found) == {"dp", "fsdp", "hsdp"}
    for layout in found.values():
        assert layout["first"] == first
        torch.testing.assert_close(layout["last"], weights(alone), atol=2e-4, rtol=1e-3)
        if layout["from_before"] is not None:
            torch.testing.assert_close(layout["from_before"], layout["last"], atol=2e-4, rtol=1e-3)
