"""The numbers in a stage's value, which are its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def scalars(value: Any, name: str = "") -> dict[str, float]:
    """Returns the numbers in a value by name, without integers beyond the range of floats. The keys of nested
    mappings are joined by a slash; a bare number is called `value`."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        found: dict[str, float] = {}
        for key, item in value.items():
            found |= scalars(item, f"{name}/{key}" if name else str(key))
        return found
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        return {}
    try:
        return {name or "value": float(value)}
    except OverflowError:
        return {}
