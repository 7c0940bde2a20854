"""The rollout side of GRPO: writes answers, with weights from the actor."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from arithmetic.model import Transformer, answered, encode_questions
from meshctl import Batch, Component, copy_weights, endpoint


class Sampler(Component):
    def __init__(self, times: int = 4) -> None:
        """`times` is the size of a group: the number of answers to each question."""
        self.times = times

    def setup(self) -> None:
        self.model = Transformer().to(self.device)

    @endpoint(dispatch="slice_dp", collect="flatten")
    def sample(self, batch: Batch) -> Batch:
        """Returns `times` random answers per question, for training."""
        tokens, logp = answered(self.model, encode_questions(batch["question"]), self.times)
        return batch.select("answer").repeat(self.times).with_columns(tokens=tokens, logp=logp)

    @endpoint(dispatch="slice_dp", collect="flatten")
    def answer(self, batch: Batch) -> Batch:
        """Returns the most likely answer to each question, for an exam."""
        tokens, _ = answered(self.model, encode_questions(batch["question"]), greedy=True)
        return batch.select("answer").with_columns(tokens=tokens)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.model.named_parameters()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        copy_weights(stream, self.model)
