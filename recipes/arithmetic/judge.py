"""Scores answers by comparison with the right ones. Replace it with a reward model or a sandbox."""

from __future__ import annotations

from torch import Tensor

from arithmetic.model import DIGITS, encode_answers
from meshctl import Batch, Component, endpoint


class Judge(Component):
    @endpoint(dispatch="slice_dp", collect="flatten")
    def score(self, batch: Batch) -> Batch:
        """Returns a reward for each written digit, float `[n, DIGITS]`: 1 where it is right."""
        rewards = digit_rewards(batch)
        self.log({"reward": accuracy(rewards)}, weight=len(batch))
        return batch.select("tokens", "logp").with_columns(reward=rewards)

    @endpoint(dispatch="slice_dp", collect="mean")
    def grade(self, batch: Batch) -> dict[str, float]:
        """Returns the reward of an exam: the fraction of answers that are right in full."""
        return {"reward": accuracy(digit_rewards(batch))}


def digit_rewards(batch: Batch) -> Tensor:
    """Returns float `[n, DIGITS]`: 1 for each right digit, else 0."""
    written: Tensor = batch["tokens"][:, -DIGITS:]
    return (written == encode_answers(batch["answer"])).float()


def accuracy(rewards: Tensor) -> float:
    """Returns the fraction of answers whose digits are all right; 0 without answers."""
    return float(rewards.prod(1).sum()) / max(1, len(rewards))
