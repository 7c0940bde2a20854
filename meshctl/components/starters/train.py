"""One model learns to tell two spirals apart: the components of the recipe beside this file.

Put your data into `Points` and your model into `Trainer`. `setup` applies the recipe's `parallel` (dp, fsdp
or both).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from meshctl import Batch, Component, endpoint


class Points(Component):
    """A source: it returns a row for each sample number, the same on any mesh and after any resume."""

    @endpoint
    def next(self, samples: range) -> Batch:
        numbers = torch.tensor(samples, dtype=torch.float64)
        side = numbers % 2
        along = numbers * 0.6180339887 % 1  # evenly spread, without random numbers
        angle = along * 3 * math.pi + side * math.pi
        points = torch.stack([angle.cos(), angle.sin()], 1) * (0.1 + along[:, None])
        return Batch({"point": points.float(), "spiral": side.long()})


class Trainer(Component):
    LAYOUTS: ClassVar = {"dims": ("dp", "fsdp")}
    """`validate` refuses meshes with other dims."""

    def __init__(self, lr: float = 0.01) -> None:
        """The parameters are the `args:` of the recipe."""
        self.lr = lr

    def setup(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
        ).to(self.device)
        if self.mesh.world_size > 1:  # replicas over dp, each sharded over fsdp
            fully_shard(self.model, mesh=self.torch_mesh["dp", "fsdp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.lr)

    @endpoint(dispatch="slice_dp", collect="mean")
    def learn(self, batch: Batch) -> dict[str, float]:
        """Makes one step on this rank's share. The returned values are metrics, averaged over the ranks."""
        batch = batch.to(self.device)
        logits: Tensor = self.model(batch["point"])
        loss = F.cross_entropy(logits, batch["spiral"])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return {"loss": loss.item(), "accuracy": (logits.argmax(1) == batch["spiral"]).float().mean().item()}

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, which may be loaded into another layout."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
