"""What a model computes for a loss, by the names of `meshctl.losses`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from meshctl.hf.errors import ModelError
from meshctl.hf.texts import IGNORED, Texts
from meshctl.losses.logprobs import token_logprobs

REF = "ref_"
OUTPUTS = ("logprobs", "mask", "entropy", "sequence_logprobs", "sequence_tokens", "scores")
OF_PAIRS = {"logprobs": "sequence_logprobs", "tokens": "sequence_tokens", "scores": "scores"}
"""The part of an input's name after `chosen_` or `rejected_` -> the output of that side."""
SIDES = ("chosen_", "rejected_")


class Outputs:
    """The outputs of a model for texts, computed when they are asked for."""

    def __init__(self, raw: Tensor, texts: Texts) -> None:
        """`raw` is `[rows, longest, vocabulary]` logits, or `[rows, longest]` scores of positions."""
        self._raw, self.texts = raw[: texts.samples], texts

    def get(self, name: str) -> Tensor:
        """Returns an output of `OUTPUTS`."""
        found = getattr(self, name)
        assert isinstance(found, Tensor)
        return found

    @property
    def nothing(self) -> Tensor:
        """0-dim: 0, as a part of the graph, so that a loss without any unit has a gradient."""
        return self._raw[:0].sum()

    @cached_property
    def token_logprobs(self) -> Tensor:
        """`[samples, longest - 1]`: log-probability of each target; 0 where the label is -100."""
        if self._raw.ndim != 3:
            raise ModelError("log-probabilities need a model with `head: lm`; this one has `head: score`")
        return token_logprobs(self._raw[:, :-1], self.texts.targets)

    @property
    def logprobs(self) -> Tensor:
        """`[tokens]`, with the padding, which `mask` leaves out."""
        return self.token_logprobs.flatten()

    @property
    def mask(self) -> Tensor:
        """`[tokens]`: 1 where there is a label."""
        return (self.texts.targets != IGNORED).to(self.logprobs.dtype).flatten()

    @property
    def entropy(self) -> Tensor:
        """`[tokens]`: entropy of each prediction."""
        logits = self._raw[:, :-1]
        logs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        return -(logs.exp() * logs).sum(-1).flatten()

    @property
    def sequence_logprobs(self) -> Tensor:
        """`[samples]`: sum over the labels of each text."""
        if self.texts.position_ids is not None:
            raise ModelError("a loss of whole texts needs one text in each row; these are packed")
        return self.token_logprobs.sum(1)

    @property
    def sequence_tokens(self) -> Tensor:
        """`[samples]`: number of labels of each text."""
        return (self.texts.targets != IGNORED).sum(1).to(self._raw.dtype)

    @property
    def values(self) -> Tensor:
        """`[samples, longest]`: the score of each position."""
        if self._raw.ndim != 2:
            raise ModelError("values and scores need a model with `head: score`; this one has `head: lm`")
        return self._raw

    @property
    def scores(self) -> Tensor:
        """`[samples]`: the score of the last token of each text."""
        last = (self.texts.lengths - 1).clamp(min=0).to(self._raw.device)
        return self.values.gather(1, last[:, None])[:, 0]


def prefixes_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the prefixes of the columns whose texts a loss with these inputs needs: both sides of pairs, or
    the texts themselves."""
    return SIDES if any(name.removeprefix(REF).startswith(SIDES) for name in names) else ("",)


def output_of(name: str) -> tuple[bool, int, str] | None:
    """Returns the output of a model that an input of a loss needs; None for an input that no model computes.

    The result is (whether the reference model computes it, index in `SIDES` or 0, name in `OUTPUTS`):
    `ref_rejected_logprobs` is (True, 1, "sequence_logprobs").
    """
    plain = name.removeprefix(REF)
    for side, prefix in enumerate(SIDES):
        if plain.startswith(prefix):
            output = OF_PAIRS.get(plain.removeprefix(prefix))
            return (plain != name, side, output) if output else None
    return (plain != name, 0, plain) if plain in OUTPUTS else None
