"""The base class of components that train: a model, its optimizer and their sharding over ranks.

    total = samples on all data ranks
    learner.descend(sum of this rank's losses / total)

In every layout gradients are summed over the data ranks, so all samples have the same weight even where
shares are uneven.

    fsdp alone      fully_shard over `fsdp`
    dp and fsdp     fully_shard over both (HSDP): replicas over `dp`, each sharded over `fsdp`
    dp alone        a replica per rank, and one all-reduce of the gradients
    one rank        the plain model, without torch.distributed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard

from arithmetic.model import Transformer
from meshctl import Component


class Learner(Component):
    def __init__(self, lr: float = 3e-3, steps: int = 0) -> None:
        """The learning rate falls to a tenth over `steps` steps; 0 keeps it constant."""
        self.lr, self.steps = lr, steps

    def setup(self) -> None:
        self.model = Transformer().to(self.device)
        self._shard()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), self.lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True
        )

    def _shard(self) -> None:
        if self.mesh.size("fsdp") > 1:
            dims = ("dp", "fsdp") if self.mesh.size("dp") > 1 else "fsdp"
            fully_shard(self.model, mesh=self.torch_mesh[dims], reshard_after_forward=False)

    def total(self, counts: list[int]) -> list[int]:
        """Returns each count, summed over the data ranks."""
        return [int(count) for count in self.collective("dp", "fsdp").all_reduce(torch.tensor(counts))]

    def descend(self, loss: Tensor) -> None:
        """Makes one optimizer step. `loss` is this rank's part of a mean over all data ranks."""
        self.optimizer.zero_grad()
        if isinstance(self.model, FSDPModule):
            data_ranks = self.collective("dp", "fsdp").size
            torch.autograd.backward(loss * data_ranks)  # FSDP averages gradients over the ranks
        else:
            torch.autograd.backward(loss)
            self._sum_gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.step()

    def _learning_rate(self) -> float:
        return self.lr * max(0.1, 1 - self.step / self.steps) if self.steps else self.lr

    def _sum_gradients(self) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        sums = self.collective("dp", "fsdp").all_reduce(flat)
        parts = torch.split(sums, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields whole parameters, or this rank's shards as DTensors, for a sync."""
        yield from self.model.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
