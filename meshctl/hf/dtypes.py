"""The dtypes that an argument can name."""

from __future__ import annotations

import torch

from meshctl.hf.errors import ModelError

DTYPES = ("float32", "float", "float64", "double", "bfloat16", "float16", "half")


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype of torch with this name. Raises `ModelError` for a name that is not in `DTYPES`."""
    if name not in DTYPES:
        raise ModelError(f"`{name}` is not a floating-point dtype of torch: there are {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found
