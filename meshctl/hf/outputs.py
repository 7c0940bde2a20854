"""The outputs of a model for the texts of a batch, as inputs of a loss and as the columns that endpoints
return. The names of inputs are those of `meshctl.losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.hf.errors import ModelError
from meshctl.hf.texts import Texts, aligned, as_column, is_aligned
from meshctl.labels import IGNORED
from meshctl.losses.logprobs import token_logprobs
from meshctl.runtime.batch.batch import Batch, Column

REF = "ref_"
SIDES = ("chosen_", "rejected_")
INPUTS = {
    "logprobs": (0, "logprobs"),
    "mask": (0, "mask"),
    "entropy": (0, "entropy"),
    "nothing": (0, "nothing"),
    "sample_index": (0, "sample_index"),
    "sequence_logprobs": (0, "sequence_logprobs"),
    "sequence_tokens": (0, "sequence_tokens"),
    "predicted_values": (0, "predicted_values"),
    "scores": (0, "scores"),
    "chosen_logprobs": (0, "sequence_logprobs"),
    "chosen_tokens": (0, "sequence_tokens"),
    "chosen_scores": (0, "scores"),
    "rejected_logprobs": (1, "sequence_logprobs"),
    "rejected_tokens": (1, "sequence_tokens"),
    "rejected_scores": (1, "scores"),
}
"""Input of a loss -> the index of the side in `SIDES` (0 without sides), and the output of that side."""
NO_SCORES = "values and scores need a model with `head: score`; this one has `head: lm`"
NO_LOGITS = "log-probabilities need a model with `head: lm`; this one has `head: score`"
NEEDS_LOGITS = "`{}` needs the logits of all tokens; leave out `logits_chunk_tokens`"
PACKED = "a loss of whole texts needs one text in each row; these are packed"


class Outputs:
    """The outputs of a model for texts. Each output is computed when it is first used."""

    def __init__(self, raw: Tensor, texts: Texts, temperature: float = 1.0) -> None:
        """`raw` is `[rows, longest, vocabulary]` logits, which `temperature` divides, or `[rows, longest]`
        scores of positions."""
        self._raw, self.texts, self._temperature = raw[: texts.samples], texts, temperature

    def get(self, name: str) -> Tensor:
        """Returns the output `name`, which is one of those in `INPUTS`."""
        found = getattr(self, name)
        assert isinstance(found, Tensor)
        return found

    def rows(self, kept: slice) -> Outputs:
        """Returns the outputs for the rows in the slice `kept`."""
        return type(self)(self._raw[kept], self.texts.rows(kept), self._temperature)

    @property
    def nothing(self) -> Tensor:
        """0-dim: the value 0 as a part of the autograd graph. A loss that does not depend on the model adds
        it, so that the backward pass can run. Its gradient has the size of all logits."""
        return self._raw[:0].sum()

    def of_raw(self, of_targets: Tensor, fill: int) -> Tensor:
        """Returns, for each position of the raw output, the value of its target; `fill` for the last position
        of a text, which predicts none. `of_targets` is `[samples, longest - 1, ...]`."""
        # A value for the last position is cheaper than a copy of the raw output of all others.
        return nn.functional.pad(of_targets, (*[0] * 2 * (of_targets.ndim - 2), 0, 1), value=fill)

    def of_targets(self, of_raw: Tensor) -> Tensor:
        """Returns `[samples, longest - 1, ...]`: the value for each target. `of_raw` has a value for each
        position of the raw output."""
        return of_raw[:, :-1]

    @cached_property
    def token_logprobs(self) -> Tensor:
        """`[samples, longest - 1]`: the log-probability of each target; 0 where the label is -100. Raises
        `ModelError` for a model with `head: score`."""
        if self._raw.ndim != 3:
            raise ModelError(NO_LOGITS)
        labels = self.of_raw(self.texts.targets, IGNORED)
        return self.of_targets(token_logprobs(self._raw, labels, self._temperature))

    @property
    def logprobs(self) -> Tensor:
        """`[tokens]`: the log-probability of each target. Targets in the padding are included, and `mask` is
        0 there."""
        return self.token_logprobs.flatten()

    @property
    def mask(self) -> Tensor:
        """`[tokens]`: 1 where a token has a label, and 0 where its label is -100."""
        dtype = torch.float64 if self._raw.dtype == torch.float64 else torch.float32
        return (self.texts.targets != IGNORED).to(dtype).flatten()

    @property
    def sample_index(self) -> Tensor:
        """int64 `[tokens]`: the row of each target. Raises `ModelError` for packed texts."""
        if self.texts.position_ids is not None:
            raise ModelError(PACKED)
        rows = torch.arange(self.texts.samples, device=self._raw.device)
        return rows.repeat_interleave(self.texts.targets.shape[1])

    @property
    def entropy(self) -> Tensor:
        """`[tokens]`: the entropy of each prediction, in nats."""
        logs = self._log_softmax()
        return self.of_targets(-(logs.exp() * logs).sum(-1)).flatten()

    def _log_softmax(self) -> Tensor:
        """Returns the log-probabilities of all tokens, for each position of the raw output. Raises
        `ModelError` for a model with `head: score`."""
        if self._raw.ndim != 3:
            raise ModelError(NO_LOGITS)
        logits = self._raw if self._raw.dtype == torch.float64 else self._raw.float()
        logits = logits if self._temperature == 1 else logits / self._temperature
        return logits.log_softmax(-1)

    def top_logprobs(self, ids: Tensor) -> Tensor:
        """Returns `[tokens, k]`: the log-probabilities of the tokens `ids` in the place of each target. `ids`
        are integers, `[samples, longest - 1, k]`."""
        found = self._log_softmax().gather(-1, self.of_raw(ids.long(), 0))
        return self.of_targets(found).flatten(0, 1)

    def likeliest(self, number: int) -> tuple[Tensor, Tensor]:
        """Returns two tensors, `[samples, longest - 1, number]`: the likeliest tokens in the place of each
        target, and their log-probabilities."""
        found = self._log_softmax().topk(number)
        return self.of_targets(found.indices), self.of_targets(found.values)

    @property
    def sequence_logprobs(self) -> Tensor:
        """`[samples]`: the sum of the log-probabilities of the labels of each text. Raises `ModelError` for
        packed texts."""
        if self.texts.position_ids is not None:
            raise ModelError(PACKED)
        return self.token_logprobs.sum(1)

    @property
    def sequence_tokens(self) -> Tensor:
        """`[samples]`: the number of labels of each text."""
        return (self.texts.targets != IGNORED).sum(1).to(self._raw.dtype)

    @property
    def values(self) -> Tensor:
        """`[samples, longest]`: the score of each position. Raises `ModelError` for a model with `head:
        lm`."""
        if self._raw.ndim != 2:
            raise ModelError(NO_SCORES)
        return self._raw

    @property
    def predicted_values(self) -> Tensor:
        """`[tokens]`: the score of the position before each target, which is the value of the text up to
        there."""
        values = self.values[:, :-1]
        return (values if values.dtype == torch.float64 else values.float()).flatten()

    @property
    def scores(self) -> Tensor:
        """`[samples]`: the score of the last token of each text. Raises `ModelError` for a model with `head:
        lm`."""
        last = (self.texts.lengths - 1).clamp(min=0).to(self._raw.device)
        return self.values.gather(1, last[:, None])[:, 0]


class OutputsWithoutLogits(Outputs):
    """The outputs of a model that computes log-probabilities without keeping its logits."""

    @cached_property
    def token_logprobs(self) -> Tensor:
        return self._raw

    @property
    def entropy(self) -> Tensor:
        raise ModelError(NEEDS_LOGITS.format("entropy"))

    def _log_softmax(self) -> Tensor:
        raise ModelError(NEEDS_LOGITS.format("top_logprobs"))

    @property
    def values(self) -> Tensor:
        raise ModelError(NO_SCORES)


def prefixes_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the prefixes of the columns with the texts for a loss. `names` are the inputs of the loss.

    The result is `SIDES` if an input belongs to a side of pairs, and one empty prefix otherwise.
    """
    return SIDES if any(name.removeprefix(REF).startswith(SIDES) for name in names) else ("",)


def output_of(name: str) -> tuple[bool, int, str] | None:
    """Returns the model's output for the input `name` of a loss; None if no model computes this input.

    The result has three elements: whether the reference model computes the output, and those of `INPUTS`. For
    example, `ref_rejected_logprobs` returns (True, 1, "sequence_logprobs").
    """
    plain = name.removeprefix(REF)
    return (plain != name, *INPUTS[plain]) if plain in INPUTS else None


OfTexts = Callable[[Outputs, str], Iterator[tuple[str, Column]]]
"""A function of a model's outputs and the prefix of the texts' columns. It yields the name and the values of
each column."""


def logprob_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    if prefix:
        yield "logprobs", outputs.sequence_logprobs.cpu()
        return
    yield "logprobs", as_column(outputs.token_logprobs, outputs.texts)


def reference_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield from logprob_columns(outputs, prefix)
    if not prefix and outputs.texts.position_ids is None:
        yield "sequence_logprobs", outputs.sequence_logprobs.cpu()


def teacher_columns(outputs: Outputs, prefix: str, top: int | None) -> Iterator[tuple[str, Column]]:
    """Yields the columns of `logprobs`, and those of the `top` likeliest tokens at each label."""
    yield from logprob_columns(outputs, prefix)
    if top is None or prefix:
        return
    ids, values_of_ids = outputs.likeliest(top)
    yield "top_ids", as_column(ids.to(torch.int32), outputs.texts)
    yield "top_logprobs", as_column(values_of_ids, outputs.texts)


def value_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "values", outputs.texts.ragged(outputs.values)


def score_columns(outputs: Outputs, prefix: str) -> Iterator[tuple[str, Column]]:
    yield "scores", outputs.scores.cpu()


def renamed(prefix: str, batch: Batch) -> Batch:
    """Returns a batch whose columns have `prefix` before their names."""
    named = {f"{prefix}{name}": batch[name] for name in batch.names}
    return Batch(named, ids=batch.known_ids, group_depth=batch.group_depth)


Reference = Callable[[], list[Outputs]]
AT_IDS = {"top_logprobs": "teacher_top_ids"}
"""Input -> the column with the tokens whose log-probabilities it has."""


def inputs_of(
    names: Iterable[str], batch: Batch, own: list[Outputs], reference: Reference | None
) -> dict[str, Any]:
    """Returns the inputs `names` of a loss, and the input `nothing`. A name that neither the batch nor the
    model has is left out.

    `own` are the outputs of the model for each side of the texts. `reference` computes those of the reference
    model, and is called at most once; None if the model has none.
    """
    texts = own[0].texts
    found: dict[str, Any] = {"nothing": own[0].nothing}
    of_reference: list[Outputs] = []
    for name in names:
        wanted = output_of(name)
        if name in AT_IDS and AT_IDS[name] in batch:
            found[name] = own[0].top_logprobs(aligned(batch, AT_IDS[name], texts))
        elif name in batch and (wanted is None or wanted[0]):  # a column has no gradient, an output has one
            found[name] = _column(batch, name, texts)
        elif wanted is not None and not wanted[0]:
            found[name] = own[wanted[1]].get(wanted[2])
        elif wanted is not None and reference is not None:
            of_reference = of_reference or reference()
            found[name] = of_reference[wanted[1]].get(wanted[2])
    return found


def _column(batch: Batch, name: str, texts: Texts) -> Any:
    """Returns a column: `[tokens]` if it has a value for each token; any other tensor on the device of the
    texts; other columns as they are."""
    if is_aligned(batch, name, texts):
        return aligned(batch, name, texts).flatten(0, 1)
    column = batch[name]
    return column.to(texts.input_ids.device) if isinstance(column, Tensor) else column
