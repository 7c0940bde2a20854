"""The inputs of a loss: columns of the batch, and outputs of the model for its texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from meshctl.hf.outputs import Outputs, output_of
from meshctl.hf.texts import Texts
from meshctl.hf.token_columns import aligned, is_aligned
from meshctl.runtime.batch.batch import Batch

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
