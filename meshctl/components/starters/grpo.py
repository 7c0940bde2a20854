"""A model learns to add two digits from rewards alone (GRPO): the components of the recipe beside this file.

    Questions   makes sums to be answered            put your prompts here
    Sampler     answers each several times           your inference engine
    Judge       scores the answers                   your reward
    Actor       learns from the scores               your model, its optimizer, its sharding

The model never sees a right answer. At first it answers 1 question in 10 correctly, by chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from meshctl import Batch, Component, copy_weights, endpoint


class Policy(nn.Module):
    """Maps two digits to a logit for each possible digit of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Embedding(20, 64)
        self.think = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 10))

    def forward(self, question: Tensor) -> Tensor:
        offset = torch.tensor([0, 10], device=question.device)
        return cast(Tensor, self.think(self.digit(question + offset).flatten(1)))


class Questions(Component):
    """A source: it returns a row for each sample number, the same on any mesh and after any resume."""

    @endpoint
    def next(self, samples: range) -> Batch:
        pairs = torch.tensor(samples) * 37 % 100  # visits all pairs of digits
        return Batch({"question": torch.stack([pairs // 10, pairs % 10], 1)})


class Sampler(Component):
    """Answers questions with the weights that the actor publishes."""

    def __init__(self, times: int = 8) -> None:
        """`times` is the number of answers to each question, which GRPO compares."""
        self.times = times

    def setup(self) -> None:
        self.model = Policy().to(self.device)

    @endpoint(dispatch="slice_dp", collect="flatten")
    @torch.no_grad()
    def sample(self, batch: Batch) -> Batch:
        choices = self.model(batch["question"].to(self.device)).log_softmax(1)
        answers = choices.exp().multinomial(self.times, replacement=True)
        logp = choices.gather(1, answers)
        return batch.repeat(self.times).with_columns(
            answer=answers.flatten().cpu(), logp=logp.flatten().cpu()
        )

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.model.named_parameters()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """`sync: actor, to: sampler` calls it with the tensors of the actor's `weights()`."""
        copy_weights(stream, self.model)


class Judge(Component):
    """Scores answers. Replace it with a reward model or a sandbox."""

    @endpoint(dispatch="slice_dp", collect="flatten")
    def score(self, batch: Batch) -> Batch:
        reward = (batch["answer"] == batch["question"].sum(1) % 10).float()
        self.log({"reward": reward.mean().item()}, weight=len(batch))
        return batch.with_columns(reward=reward)


class Actor(Component):
    def __init__(self, lr: float = 0.005, clip: float = 0.2, entropy: float = 0.2) -> None:
        """`entropy` weighs the entropy bonus; without it the policy settles on wrong answers."""
        self.lr, self.clip, self.entropy = lr, clip, entropy

    def setup(self) -> None:
        self.model = Policy().to(self.device)
        if self.mesh.world_size > 1:  # replicas over dp, each sharded over fsdp
            fully_shard(self.model, mesh=self.torch_mesh["dp", "fsdp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.lr, weight_decay=0.0)

    @endpoint(dispatch="slice_dp", collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        """Makes one step on this rank's share. All answers to a question are in one share."""
        advantage = advantages(batch).to(self.device)
        batch = batch.to(self.device)
        choices = self.model(batch["question"]).log_softmax(1)
        logp = choices.gather(1, batch["answer"][:, None]).squeeze(1)
        ratio = (logp - batch["logp"]).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage).mean()
        entropy = -(choices.exp() * choices).sum(1).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(-gain - self.entropy * entropy)
        self.optimizer.step()
        return {"entropy": entropy.item()}

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Returns whole parameters, or this rank's shards of them."""
        return self.model.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, which may be loaded into another layout."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def advantages(batch: Batch) -> Tensor:
    """Returns each answer's reward, normalised by the mean and deviation over the answers to its question."""
    reward: Tensor = batch["reward"]
    group = torch.unique(cast(Tensor, batch.group_ids), dim=0, return_inverse=True)[1]
    count = group.bincount()
    mean = torch.zeros(len(count)).index_add(0, group, reward) / count
    centered = reward - mean[group]
    deviation = (torch.zeros(len(count)).index_add(0, group, centered**2) / count).sqrt()
    advantage: Tensor = centered / (deviation[group] + 0.01)
    return advantage
