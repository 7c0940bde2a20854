"""Marks answers against those in the file. It has no model; a reward model or a sandbox would stand here."""

from __future__ import annotations

from torch import Tensor

from arithmetic.model import DIGITS, encode_answers
from meshctl import Batch, Component, endpoint


class Judge(Component):
    @endpoint(dispatch="slice_dp", collect="flatten")
    def score(self, batch: Batch) -> Batch:
        """A mark for each written digit, 1 if it is right: float `[n, DIGITS]`, so that each digit is
        credited with its own."""
        marks = marked(batch)
        self.log({"reward": right_in(marks)}, weight=len(batch))
        return batch.select("tokens", "logp").with_columns(reward=marks)

    @endpoint(dispatch="slice_dp", collect="mean")
    def grade(self, batch: Batch) -> dict[str, float]:
        """The reward of an exam: the share of answers that are right in full."""
        return {"reward": right_in(marked(batch))}


def marked(batch: Batch) -> Tensor:
    """1 for each right digit, float `[n, DIGITS]`."""
    written: Tensor = batch["tokens"][:, -DIGITS:]
    return (written == encode_answers(batch["answer"])).float()


def right_in(marks: Tensor) -> float:
    """The share of answers that are right in full; 0 of none."""
    return float(marks.prod(1).sum()) / max(1, len(marks))
