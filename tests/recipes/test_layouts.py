"""The same training in every layout: four real processes, with dp, fsdp and both, give what one process
gives.

Shares are uneven (2, 2, 1 and 1 samples), so a layout that weighs ranks and not samples goes another way.
Each layout saves, and loads what the one before it saved: a state is re-sharded on its way.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from arithmetic import Trainer
from torch.distributed.tensor import DTensor

from meshctl import Batch, DeviceMesh
from meshctl.components import Cycle
from meshctl.runtime import checkpoint
from meshctl.runtime.rank_context import RankContext
from tests.runtime import worlds

LAYOUTS = {"dp": {"dp_size": 4}, "fsdp": {"fsdp_size": 4}, "hsdp": {"dp_size": 2, "fsdp_size": 2}}


def trainer(mesh: DeviceMesh, rank: int) -> Trainer:
    torch.manual_seed(0)
    made = Trainer()
    made._context = RankContext("trainer", mesh, rank, step=1)
    made.setup()
    return made


def problems() -> Batch:
    batch = Cycle("arithmetic/train.jsonl").next(range(6))
    assert batch is not None
    return batch


def share(batch: Batch, mesh: DeviceMesh, rank: int) -> Batch:
    return batch.take(list(mesh.sample_range(len(batch), rank)))


def weights(trained: Trainer) -> list[float]:
    whole = [
        tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for _, tensor in trained.weights()
    ]
    return torch.cat([tensor.detach().flatten() for tensor in whole]).tolist()


def train(folder: Path, rank: int) -> None:
    """Trains in each layout on one of four ranks. Rank 0 writes the result to `found.json`."""
    found, before = {}, ""
    for name, sizes in LAYOUTS.items():
        mesh = DeviceMesh.from_sizes(world_size=4, **sizes)
        trained = trainer(mesh, rank)
        first = weights(trained)
        for _ in range(2):
            trained.learn(share(problems(), mesh, rank))
        checkpoint.save(folder, name, trained.state_dict(), mesh.at(rank))
        loaded = trainer(mesh, rank)
        if before:
            loaded.load_state_dict(checkpoint.load(folder, before, loaded.state_dict(), mesh.at(rank)))
            loaded.learn(share(problems(), mesh, rank))
        trained.learn(share(problems(), mesh, rank))
        found[name] = {
            "first": first,
            "last": weights(trained),
            "from_before": weights(loaded) if before else None,
        }
        before = name
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


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
