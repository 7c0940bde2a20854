"""Supervised training of the same model on the right answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arithmetic.judge import accuracy, digit_rewards
from arithmetic.learner import Learner
from arithmetic.model import DIGITS, answered, encode_answers, encode_questions
from meshctl import Batch, endpoint


class Trainer(Learner):
    @endpoint(dispatch="slice_dp", collect="mean")
    def learn(self, batch: Batch) -> dict[str, float]:
        """Makes one step on these problems. Returns the loss before it, in nats per digit."""
        answers = encode_answers(batch["answer"])
        tokens = torch.cat([encode_questions(batch["question"]), answers], 1)
        logits = self.model(tokens[:, :-1])[:, -DIGITS:]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
        (total,) = self.total([answers.numel()])
        self.descend(loss / total)
        return {"loss": float(loss.detach()) / max(1, answers.numel())}

    @endpoint(dispatch="slice_dp", collect="mean")
    def examine(self, batch: Batch) -> dict[str, float]:
        """Returns the fraction of problems with right answers."""
        tokens, _ = answered(self.model, encode_questions(batch["question"]), greedy=True)
        return {"reward": accuracy(digit_rewards(batch.with_columns(tokens=tokens)))}
