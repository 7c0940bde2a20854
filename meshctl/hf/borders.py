"""Compares a packed pair of short texts with the two alone, on the model that is to compute on packed texts.

transformers finds the borders of packed texts in their positions, but not for every architecture: a state
passes a border, and some masks or positions do not depend on `position_ids`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meshctl.hf import transformers_api
from meshctl.hf.errors import ModelError
from meshctl.runtime.batch.batch import Batch, Ragged

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
