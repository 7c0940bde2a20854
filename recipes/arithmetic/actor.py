"""Learns from marks: GRPO, the policy gradient with advantages against the mean of each question's own group
of answers."""

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
        """`minibatch` counts samples over all ranks. `entropy` rewards doubt: without it the policy settles
        on wrong digits."""
        super().__init__(lr, steps)
        self.minibatch, self.clip, self.entropy = minibatch, clip, entropy

    @endpoint(dispatch="slice_dp", collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        batch = batch.with_columns(advantage=advantages(batch))
        size = max(1, self.minibatch // self.mesh.data_size)
        parts = list(batch.minibatches(size, seed=self.step))
        totals = self.total([len(part) for part in parts])
        entropy = 0.0
        for part, total in zip(parts, totals, strict=True):
            gain, doubt = self._gain(part)
            self.descend(-(gain + self.entropy * doubt) / (total * DIGITS))
            entropy += float(doubt.detach())
        return {
            "entropy": entropy / max(1, len(batch) * DIGITS),
            "advantage": float(batch["advantage"].abs().mean()),
        }

    def _gain(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Summed over the written digits: what the clipped policy gradient makes larger, and the policy's
        entropy."""
        tokens = part["tokens"]
        choices = self.model(tokens[:, :-1])[:, -DIGITS:].log_softmax(-1)
        logp = choices.gather(-1, tokens[:, -DIGITS:, None]).squeeze(-1)
        ratio = (logp - part["logp"]).exp()
        gain = torch.minimum(
            ratio * part["advantage"], ratio.clamp(1 - self.clip, 1 + self.clip) * part["advantage"]
        )
        return gain.sum(), -(choices.exp() * choices).sum()


def advantages(batch: Batch) -> Tensor:
    """Each sample's reward, less the mean of its group; the route keeps groups on one rank."""
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
