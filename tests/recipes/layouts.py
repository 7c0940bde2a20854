"""One of four ranks that train one model in several layouts. Rank 0 writes the result to `found.json`.

Shares are uneven (2, 2, 1 and 1 samples), so a layout that weighs ranks and not samples goes another way.
Each layout saves, and loads what the one before it saved: a state is re-sharded on its way.
"""

import json
from pathlib import Path

import torch
from arithmetic import Trainer
from torch.distributed.tensor import DTensor

from meshctl import Batch, DeviceMesh
from meshctl.components import Cycle
from meshctl.runtime import checkpoint
from meshctl.runtime.rank_context import RankContext

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
