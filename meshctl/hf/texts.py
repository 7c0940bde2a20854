"""The texts of a batch as the padded inputs of a model, and the columns with a value for each of their
tokens.

    column          content, one row for each sample
    input_ids       tokens
    labels          the tokens to learn, -100 elsewhere; without this column, all tokens are learned
    position_ids    positions in packed rows; the positions of each text begin at 0

Rows are padded at their end. Attention is causal, so no real token sees the padding, and no mask is needed.
Texts of a packed row do not attend to each other: transformers finds their borders in the positions.

Losses and advantages take the values of tokens aligned with labels, `[samples, longest - 1]`. The value of a
label stands at its own token in the ragged column, except that of `values`: a critic gives the value of the
text up to a token, and the one before the label is at the token before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshctl.hf import transformers_api
from meshctl.hf.options import ModelError
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.batch.ids import shown_ids


@dataclass(frozen=True, eq=False)
class Texts:
    """Padded rows on the model's device. There is at least one row, because all ranks must run the model."""

    input_ids: Tensor
    """int64 `[rows, longest]`"""
    labels: Tensor
    """int64 `[rows, longest]`, not shifted."""
    lengths: Tensor
    """int64 `[samples]`, on the CPU: the number of tokens of each text. For an empty batch there is one row
    and no sample."""
    position_ids: Tensor | None = None
    """int64 `[rows, longest]`; None where each row is one text."""
    is_part: bool = False
    """True if other ranks have further tokens of each row."""
    hidden: Tensor | None = None
    """`[rows, longest, hidden size]`: the results of earlier pipeline stages; None in the first one."""

    @property
    def samples(self) -> int:
        return len(self.lengths)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model of transformers."""
        positions = {} if self.position_ids is None else {"position_ids": self.position_ids}
        # With this mask, transformers does not look for the borders of packed texts in the positions.
        all_real = {"attention_mask": torch.ones_like(self.input_ids)} if self.is_part else {}
        tokens = {"input_ids": self.input_ids} if self.hidden is None else {"inputs_embeds": self.hidden}
        return {**tokens, **positions, **all_real}

    @property
    def is_real(self) -> Tensor:
        """bool `[rows, longest]`: whether a token is no padding."""
        lengths = torch.nn.functional.pad(self.lengths, (0, len(self.input_ids) - self.samples))
        return (torch.arange(self.input_ids.shape[1]) < lengths[:, None]).to(self.input_ids.device)

    @property
    def targets(self) -> Tensor:
        """int64 `[samples, longest - 1]`: the label that each position predicts. The last position predicts
        none."""
        return self.labels[: self.samples, 1:]

    def rows(self, kept: slice) -> Texts:
        """Returns the rows in the slice `kept`. For an empty batch, the result has no samples and keeps the
        padding row."""
        positions = None if self.position_ids is None else self.position_ids[kept]
        return Texts(self.input_ids[kept], self.labels[kept], self.lengths[kept], positions)

    def ragged(self, values: Tensor) -> Ragged:
        """Returns `values`, `[samples, longest]`, as a ragged column without the padding, in CPU memory."""
        is_real = torch.arange(values.shape[1]) < self.lengths[:, None]
        offsets = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        return Ragged(values.cpu()[is_real], offsets)


def texts_of(batch: Batch, prefix: str, device: torch.device, multiple: int = 1) -> Texts:
    """Returns the texts in the columns whose names begin with `prefix`. `multiple` divides the length of the
    rows. Raises `ModelError` if a column is missing, has the wrong form, or has lengths other than those of
    `input_ids`."""
    ids = _column(batch, f"{prefix}input_ids")
    labels = _column(batch, f"{prefix}labels") if f"{prefix}labels" in batch else ids
    if not torch.equal(ids.offsets, labels.offsets):
        raise ModelError(f"`{prefix}labels` and `{prefix}input_ids` differ in their lengths")
    if not len(ids):
        one = torch.zeros((1, 2 * multiple), dtype=torch.int64, device=device)
        return Texts(one, torch.full_like(one, IGNORED), torch.zeros(0, dtype=torch.int64))
    positions = None
    longest = -(-int(ids.lengths.max()) // multiple) * multiple
    padded = _padded(labels, longest, IGNORED).to(device)
    if not prefix and "position_ids" in batch:
        positions = _positions(_column(batch, "position_ids"), ids, longest).to(device)
        padded = padded.masked_fill(positions == 0, IGNORED)  # no text predicts the first token of the next
    return Texts(_padded(ids, longest).to(device), padded, ids.lengths.cpu(), positions)


def _padded(rows: Ragged, longest: int, fill: int = 0) -> Tensor:
    padded: Tensor = rows.padded(fill)
    return torch.nn.functional.pad(padded, (0, longest - padded.shape[1]), value=fill)


def check_positions(batch: Batch, prefix: str, texts: Texts, limit: int) -> None:
    """Raises `ModelError` if a text has more tokens than the model has positions, which is `limit`. `texts`
    are the texts of `batch` in the columns whose names begin with `prefix`."""
    lengths = texts.lengths
    if texts.samples and texts.position_ids is not None:
        lengths = (texts.position_ids + 1).where(texts.is_real, 0).amax(1).cpu()
    too_long = [row for row, length in enumerate(lengths.tolist()) if length > limit]
    if too_long:
        raise ModelError(
            f"`{prefix}input_ids`: samples {shown_ids(batch.ids[too_long].tolist())} are longer than the "
            f"{limit} positions of the model, the first with {int(lengths[too_long[0]])} tokens; shorten "
            "them, or raise `config.max_position_embeddings`"
        )


def joined(first: Texts, second: Texts | None = None) -> Texts:
    """Returns the rows of `first` followed by those of `second`, if it is given, for one forward pass. Both
    have the same number of samples. If both are empty, the result is `first`."""
    if second is None or not first.samples:
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


def _positions(positions: Ragged, ids: Ragged, longest: int) -> Tensor:
    """Returns the padded positions, int64 `[rows, longest]`. The positions continue in the padding, so that
    the padding belongs to the last text of its row."""
    if not torch.equal(positions.offsets, ids.offsets):
        raise ModelError("`position_ids` and `input_ids` differ in their lengths")
    padded = _padded(positions, longest).long()
    lengths = positions.lengths[:, None]
    place = torch.arange(padded.shape[1])
    last = padded.gather(1, (lengths - 1).clamp(min=0))
    return torch.where(place < lengths, padded, last + place - lengths + 1)


BEFORE_LABEL = "values"
OF_SAMPLES = "advantages"
"""A column that may have one value for each sample, which counts for all of its tokens."""
OF_TOKENS = (
    "old_logprobs",
    "sampled_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "teacher_top_logprobs",
    "teacher_top_ids",
    "values",
    "returns",
    "advantages",
)


def aligned(batch: Batch, name: str, texts: Texts) -> Tensor:
    """Returns the column `name` as `[samples, longest - 1, ...]` on the device of the texts: one value for
    each label, and 0 in the padding. Raises `ModelError` if the column has other lengths than the texts."""
    column = batch[name]
    longest, device = texts.input_ids.shape[1], texts.input_ids.device
    if name == OF_SAMPLES and isinstance(column, Tensor) and column.ndim == 1:
        by_sample = column.to(device)[:, None]
        return by_sample.expand(len(column), longest - 1)
    if not is_of_tokens(column, texts):
        raise ModelError(f"column `{name}` must have one value for each token of `input_ids`")
    if not len(column):
        return torch.zeros(
            (0, longest - 1, *column.values.shape[1:]), dtype=column.values.dtype, device=device
        )
    padded: Tensor = column.padded().to(device)
    return padded[:, :-1] if name == BEFORE_LABEL else padded[:, 1:]


def is_of_tokens(column: object, texts: Texts) -> bool:
    """Returns whether a column has a value for each token of the texts."""
    return isinstance(column, Ragged) and torch.equal(column.lengths.cpu(), texts.lengths)


def is_aligned(batch: Batch, name: str, texts: Texts) -> bool:
    """Returns whether losses and advantages take a column by token: each of `OF_TOKENS`, and ragged columns
    of floats with a value for each token."""
    column = batch[name]
    is_float = isinstance(column, Ragged) and column.values.is_floating_point()
    return name in OF_TOKENS or (is_float and is_of_tokens(column, texts))


def as_column(values: Tensor, texts: Texts) -> Ragged:
    """Returns a ragged column whose aligned values are `values`, `[samples, longest - 1, ...]`. The first
    token of a text has the value 0."""
    first = values.new_zeros((len(values), 1, *values.shape[2:]))
    return texts.ragged(torch.cat([first, values], 1))


ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Dtype -> the part of the effect of a text on the next one that rounding can have; 0.1 for others."""


def check_borders(module: Any, dtype: torch.dtype, columns_of: Callable[[Batch], Batch]) -> None:
    """Raises `ModelError` if a model does not keep packed texts apart. It computes in `dtype`, and
    `columns_of` returns a column with a value for each token of texts. All ranks call this together."""
    config = module.config
    total = min(32, transformers_api.positions_of(config) or 32)
    second = total * 3 // 8
    ids = torch.arange(total) * 5 % config.get_text_config().vocab_size
    joined = {"input_ids": Ragged.of([ids])}
    positions = torch.cat([torch.arange(total - second), torch.arange(second)])
    packed = {**joined, "position_ids": Ragged.of([positions])}

    def last(given: dict[str, Ragged]) -> torch.Tensor:
        [name] = (found := columns_of(Batch(given, ids=torch.arange(1)))).names
        values: torch.Tensor = found[name].values
        return values[1 - second :].double()  # no text predicts its first token

    alone = last({"input_ids": Ragged.of([ids[-second:]])})
    effect, found = (float((last(one) - alone).abs().max()) for one in (joined, packed))
    is_exact = torch.get_float32_matmul_precision() == "highest"
    part = ROUNDING.get(dtype, 0.1) if is_exact else 0.1
    if found > max(part * effect, torch.finfo(dtype).eps / 8 * float(alone.abs().max())):
        raise ModelError(
            f"`{type(module).__name__}` does not keep packed texts apart: the text before it in its "
            f"row changes the results of a text by {found:.2g}; leave out `pack`"
        )
