"""The texts of a batch as the padded inputs of a model.

    column          content, one row for each sample
    input_ids       tokens
    labels          what is learned; -100 elsewhere. Without this column, all tokens
    position_ids    where several texts are packed into one row; each begins at 0

Rows are padded at their end. Attention is causal, so no real token sees the padding, and no mask is needed.
Texts of a row do not see each other: transformers finds their borders in the positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshctl.hf.errors import ModelError
from meshctl.runtime.batch.batch import Batch, Ragged

IGNORED = -100
"""The label of a token that no loss uses."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Padded rows, on the model's device. There is at least one, because all ranks must run the model."""

    input_ids: Tensor
    """int64 `[rows, longest]`"""
    labels: Tensor
    """int64 `[rows, longest]`, not shifted."""
    lengths: Tensor
    """int64 `[samples]`, on the CPU. There are fewer samples than rows where the batch is empty."""
    position_ids: Tensor | None = None
    """int64 `[rows, longest]`; None where each row is one text."""

    @property
    def samples(self) -> int:
        return len(self.lengths)

    @property
    def targets(self) -> Tensor:
        """int64 `[samples, longest - 1]`: what the positions predict, the last one excepted."""
        return self.labels[: self.samples, 1:]

    def rows(self, kept: slice) -> Texts:
        """Returns a slice of the rows. An empty batch has one row that belongs to no sample; its slice has no
        samples, either."""
        positions = None if self.position_ids is None else self.position_ids[kept]
        return Texts(self.input_ids[kept], self.labels[kept], self.lengths[kept], positions)

    def ragged(self, values: Tensor) -> Ragged:
        """Returns values `[samples, longest]` as rows of the lengths of the texts, in CPU memory."""
        is_real = torch.arange(values.shape[1]) < self.lengths[:, None]
        offsets = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        return Ragged(values.cpu()[is_real], offsets)


def texts_of(batch: Batch, prefix: str, device: torch.device) -> Texts:
    """Returns the texts in the columns whose names begin with `prefix`. Raises `ModelError`."""
    ids = _column(batch, f"{prefix}input_ids")
    labels = _column(batch, f"{prefix}labels") if f"{prefix}labels" in batch else ids
    if not torch.equal(ids.offsets, labels.offsets):
        raise ModelError(f"`{prefix}labels` and `{prefix}input_ids` differ in their lengths")
    if not len(ids):
        one = torch.zeros((1, 2), dtype=torch.int64, device=device)
        return Texts(one, torch.full_like(one, IGNORED), torch.zeros(0, dtype=torch.int64))
    positions = None
    padded = labels.padded(IGNORED).to(device)
    if not prefix and "position_ids" in batch:
        positions = _positions(_column(batch, "position_ids"), ids).to(device)
        padded = padded.masked_fill(positions == 0, IGNORED)  # no text predicts the first token of the next
    return Texts(ids.padded().to(device), padded, ids.lengths.cpu(), positions)


def joined(first: Texts, second: Texts) -> Texts:
    """Returns the rows of both, for one forward pass. Both have the same number of samples."""
    if not first.samples:
        return first
    longest = max(first.input_ids.shape[1], second.input_ids.shape[1])

    def padded(rows: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(rows, (0, longest - rows.shape[1]), value=fill)

    return Texts(
        torch.cat([padded(first.input_ids, 0), padded(second.input_ids, 0)]),
        torch.cat([padded(first.labels, IGNORED), padded(second.labels, IGNORED)]),
        torch.cat([first.lengths, second.lengths]),
    )


def _column(batch: Batch, name: str) -> Ragged:
    if name not in batch:
        raise ModelError(f"the batch has no column `{name}`; it has {', '.join(batch.names) or 'none'}")
    column = batch[name]
    if isinstance(column, Tensor) and column.ndim == 2:
        return Ragged.of(list(column)) if len(column) else Ragged(column.flatten(), torch.zeros(1).long())
    if not isinstance(column, Ragged):
        raise ModelError(f"column `{name}` must have a row of tokens for each sample")
    return column


def _positions(positions: Ragged, ids: Ragged) -> Tensor:
    """Returns int64 `[rows, longest]`. Those of the padding continue the row, so that it is part of the last
    text."""
    if not torch.equal(positions.offsets, ids.offsets):
        raise ModelError("`position_ids` and `input_ids` differ in their lengths")
    padded = positions.padded().long()
    lengths = positions.lengths[:, None]
    place = torch.arange(padded.shape[1])
    last = padded.gather(1, (lengths - 1).clamp(min=0))
    return torch.where(place < lengths, padded, last + place - lengths + 1)
