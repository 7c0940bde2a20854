"""A student learns what a teacher says: the components of the recipe beside this file.

Inputs    gives what both are asked          put your data here
Teacher   answers, and is never changed      your large model
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
    """A source: it gives a row for each sample number, the same on any mesh and after any resume."""

    @endpoint
    def next(self, samples: range) -> Batch:
        numbers = torch.tensor(samples, dtype=torch.float64)[:, None]
        steps = torch.tensor([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0], dtype=torch.float64).sqrt()
        return Batch({"x": (numbers * steps % 1 * 2 - 1).float()})  # spreads evenly, without a random number


class Teacher(Component):
    """`frozen: true` in the recipe: it has nothing to save. Load a trained model in `setup`; this one was drawn at random."""

    def setup(self) -> None:
        self.model = (
            nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, CLASSES)).to(self.device).eval()
        )
        for parameter in self.model.parameters():
            nn.init.normal_(parameter)

    @endpoint(dispatch="slice_dp", collect="flatten")
    @torch.no_grad()
    def answer(self, batch: Batch) -> Batch:
        """The same samples with a new column; the student gets it joined with their inputs, sample by sample."""
        logits: Tensor = self.model(batch["x"].to(self.device))
        return Batch({"logits": logits.cpu()})


class Student(Component):
    def __init__(self, lr: float = 0.02, temperature: float = 2.0) -> None:
        self.lr, self.temperature = lr, temperature

    def setup(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES)).to(self.device)
        if self.mesh.size("fsdp") > 1:  # with dp beside it: copies over dp, each split over fsdp
            fully_shard(
                self.model,
                mesh=self.torch_mesh["dp", "fsdp"] if self.mesh.size("dp") > 1 else self.torch_mesh["fsdp"],
            )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.lr)

    @endpoint(dispatch="slice_dp", collect="mean")
    def learn(self, batch: Batch) -> dict[str, float]:
        """One step on this rank's share; `agrees` is how often both would choose the same."""
        batch = batch.to(self.device)
        said: Tensor = self.model(batch["x"])
        soft, softer = said / self.temperature, batch["logits"] / self.temperature
        loss = F.kl_div(soft.log_softmax(1), softer.log_softmax(1), reduction="batchmean", log_target=True)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        if self.mesh.size("fsdp") == 1:  # fully_shard does the same by itself
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    self.collective("dp").all_reduce(parameter.grad, "mean")
        self.optimizer.step()
        return {
            "loss": loss.item(),
            "agrees": (said.argmax(1) == batch["logits"].argmax(1)).float().mean().item(),
        }

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds; it may be loaded into another layout."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
