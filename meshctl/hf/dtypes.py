"""The dtype that an argument names."""

from __future__ import annotations

import torch

from meshctl.hf.errors import ModelError


def dtype_of(name: str) -> torch.dtype:
    """Returns the floating-point dtype of torch with this name. Raises `ModelError` if there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ModelError(f"`{name}` is no floating-point dtype of torch")
    return found
