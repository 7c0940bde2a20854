"""Components of the runs that the contract test launches and resumes.

A saved run depends on this file, so it changes only by addition. Two files beside this module steer a run:
while `hold` exists, the trainer waits in step 2; if `fail` exists, rank 0 of the trainer raises an exception
in step 5, in which rank 1 waits. The file names the class of the exception.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from meshctl import Batch, Component, Ragged, endpoint

FOLDER = Path(__file__).parent
SIZE = 4


class Source(Component):
    """A source of random numbers: they depend on the seed of the run, the step and the data rank."""

    @endpoint
    def next(self, samples: range) -> Batch:
        number = torch.tensor(list(samples), dtype=torch.float64)
        tokens = Ragged.of([torch.arange(1 + sample % 3) for sample in samples])
        text = [f"sample {sample}" for sample in samples]
        x = number + torch.rand(len(samples), dtype=torch.float64)
        return Batch({"x": x, "tokens": tokens, "text": text})


class Examples(Source):
    """A source that knows its length."""

    def __len__(self) -> int:
        return 640


class Sampler(Component):
    """A stateless component that receives the trainer's weights in every step."""

    def setup(self) -> None:
        self.weight = torch.zeros(SIZE, dtype=torch.float64)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        for _, tensor in stream:
            self.weight = tensor.to(torch.float64).clone()

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        answers = batch.repeat(2)
        noise = torch.rand(len(answers), dtype=torch.float64)
        reward = answers["x"] * self.weight.sum() + noise
        self.log({"reward": float(reward.mean())}, weight=len(answers))
        return answers.with_columns(reward=reward)


class Trainer(Component):
    """A component with a sharded tensor, a plain tensor and a plain number in its state."""

    def setup(self) -> None:
        whole = torch.full((SIZE,), 0.5, dtype=torch.float64)
        self.weight = distribute_tensor(whole, self.torch_mesh["fsdp"], [Shard(0)])
        self.momentum = torch.zeros((), dtype=torch.float64)
        self.updates = 0

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        while self.step == 2 and (FOLDER / "hold").exists():
            time.sleep(0.02)
        if self.step == 5 and self.rank == 0 and (FOLDER / "fail").exists():
            raise getattr(builtins, (FOLDER / "fail").read_text().strip())("the batch is spoiled")
        while self.step == 5 and (FOLDER / "fail").exists():
            time.sleep(0.02)
        reward = self.collective("fsdp").all_reduce(batch["reward"].mean()) / 2
        self.momentum = 0.5 * self.momentum + reward
        self.updates += 1
        assert isinstance(self.weight, DTensor)
        self.weight.to_local().add_(self.momentum * 1e-3 * torch.rand((), dtype=torch.float64))
        return {"momentum": float(self.momentum), "updates": float(self.updates)}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "momentum": self.momentum, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight, self.momentum, self.updates = state["weight"], state["momentum"], state["updates"]
