"""A student learns the answers of a teacher: the components of the recipe beside this file.

Inputs    makes the inputs of both           put your data here
Teacher   answers, and is never trained      your large model
Student   learns the answers                 your small model, its optimizer, its sharding
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from meshctl import Batch, Component, endpoint

WIDTH, CLASSES = 8, 5


class Inputs(Component):
    """A source: it returns a row for each sample number, the same on any mesh and after any resume."""

    @endpoint
    def next(self, samples: range) -> Batch:
        numbers = torch.tensor(samples, dtype=torch.float64)[:, None]
        steps = torch.tensor([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0], dtype=torch.float64).sqrt()
        return Batch({"x": (numbers * steps % 1 * 2 - 1).float()})  # evenly spread, without random numbers


class Teacher(Component):
    """A component with `frozen: true` in the recipe, so it has no state to save.

    Load a trained model in `setup`; this one has random parameters.
    """

    def setup(self) -> None:
        self.model = (
            nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, CLASSES)).to(self.device).eval()
        )
        for parameter in self.model.parameters():
            nn.init.normal_(parameter)

    @endpoint(dispatch="slice_dp", collect="flatten")
    @torch.no_grad()
    def answer(self, batch: Batch) -> Batch:
        """Returns a new column for the same samples. The student receives it joined with their inputs."""
        logits: Tensor = self.model(batch["x"].to(self.device))
        return Batch({"logits": logits.cpu()})


class Student(Component):
    def __init__(self, lr: float = 0.02, temperature: float = 2.0) -> None:
        self.lr, self.temperature = lr, temperature

    def setup(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES)).to(self.device)
        if self.mesh.world_size > 1:  # replicas over dp, each sharded over fsdp
            fully_shard(self.model, mesh=self.torch_mesh["dp", "fsdp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.lr)

    @endpoint(dispatch="slice_dp", collect="mean")
    def learn(self, batch: Batch) -> dict[str, float]:
        """Makes one step on this rank's share. `agrees` is the fraction of samples for which both choose the
        same class."""
        batch = batch.to(self.device)
        logits: Tensor = self.model(batch["x"])
        soft, softer = logits / self.temperature, batch["logits"] / self.temperature
        loss = F.kl_div(soft.log_softmax(1), softer.log_softmax(1), reduction="batchmean", log_target=True)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return {
            "loss": loss.item(),
            "agrees": (logits.argmax(1) == batch["logits"].argmax(1)).float().mean().item(),
        }

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, which may be loaded into another layout."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
