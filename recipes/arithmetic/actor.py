"""Learns from rewards by GRPO: a policy gradient whose advantages are relative to the mean reward of the
answers to the same question."""

from __future__ import annotations

import torch
from torch import Tensor

from arithmetic.learner import Learner
from arithmetic.model import DIGITS
from meshctl import Batch, endpoint


class Actor(Learner):
    def __init__(
        self, lr: float = 3e-3, steps: int = 0, minibatch: int = 128, clip: float = 0.2, entropy: float = 0.1
    ) -> None:
        """`minibatch` is the number of samples over all ranks. `entropy` weighs the entropy bonus; without it
        the policy settles on wrong digits."""
        super().__init__(lr, steps)
        self.minibatch, self.clip, self.entropy = minibatch, clip, entropy

    @endpoint(dispatch="slice_dp", collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        """Makes one optimizer step for each minibatch."""
        batch = batch.with_columns(advantage=advantages(batch))
        size = max(1, self.minibatch // self.mesh.data_size)
        parts = list(batch.minibatches(size, seed=self.step))
        totals = self.total([len(part) for part in parts])
        entropy = 0.0
        for part, total in zip(parts, totals, strict=True):
            gain, part_entropy = self._gain(part)
            self.descend(-(gain + self.entropy * part_entropy) / (total * DIGITS))
            entropy += float(part_entropy.detach())
        return {
            "entropy": entropy / max(1, len(batch) * DIGITS),
            "advantage": float(batch["advantage"].abs().mean()),
        }

    def _gain(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Returns the clipped objective of the policy gradient and the policy's entropy, each summed over the
        written digits."""
        tokens = part["tokens"]
        choices = self.model(tokens[:, :-1])[:, -DIGITS:].log_softmax(-1)
        logp = choices.gather(-1, tokens[:, -DIGITS:, None]).squeeze(-1)
        ratio = (logp - part["logp"]).exp()
        gain = torch.minimum(
            ratio * part["advantage"], ratio.clamp(1 - self.clip, 1 + self.clip) * part["advantage"]
        )
        return gain.sum(), -(choices.exp() * choices).sum()


def advantages(batch: Batch) -> Tensor:
    """Returns each sample's reward minus the mean of its group. The route keeps groups on one rank."""
    reward, groups = batch["reward"], batch.group_ids
    if groups is None:
        raise ValueError(
            "the actor compares the answers to one question: its samples must come from batch.repeat(...)"
        )
    group: Tensor = torch.unique(groups, dim=0, return_inverse=True)[1]
    count = torch.bincount(group)
    mean = reward.new_zeros(len(count), reward.shape[1]).index_add_(0, group, reward) / count[:, None]
    advantage: Tensor = reward - mean[group]
    return advantage
