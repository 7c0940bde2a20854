"""Columns with a value for each token of the texts, as losses and advantages take them: aligned with labels.

    column     ragged, one value for each token of a text, as `logprobs` returns them
    aligned    [samples, longest - 1]: the value that belongs to the label at each position of `Outputs`

The value of a label stands at its own token, except that of `values`: a critic gives the value of the text up
to a token, and the one before the label is at the token before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.hf.errors import ModelError
from meshctl.hf.texts import Texts
from meshctl.runtime.batch.batch import Batch, Ragged

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
