"""The numbers in a stage's value, which are its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from torch import Tensor


def scalars(value: Any, name: str = "") -> dict[str, float]:
    """Returns the numbers in a value by name, without integers beyond the range of floats. The keys of nested
    mappings are joined by a slash; a bare number is called `value`. Raises `ValueError` if two numbers
    have one name."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        found: dict[str, float] = {}
        for key, item in value.items():
            inner = scalars(item, f"{name}/{key}" if name else str(key))
            if twice := found.keys() & inner.keys():
                raise ValueError(f"two metrics have the name {min(twice)!r}")
            found |= inner
        return found
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float, Real)):
        return {}
    try:
        return {name or "value": float(value)}
    except OverflowError:
        return {}


def other_values(value: Any, name: str = "") -> Iterator[str]:
    """Yields a description of each part of a stage's value that is not a number, and thus no metric."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from other_values(item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, Tensor) and value.numel() != 1:
        yield f"a tensor of shape {list(value.shape)}{f' as `{name}`' if name else ''}"
    elif not isinstance(value, (Tensor, Real)):
        kind = "None" if value is None else f"a {type(value).__name__}"
        yield f"{kind}{f' as `{name}`' if name else ''}"


def logged_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the numbers that a component logs, with the names of `scalars`. Tensors are not converted,
    because that waits for their device. Raises `TypeError` if a value is not a number."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        inner = logged_numbers(value, f"{name}/") if isinstance(value, Mapping) else {name: value}
        if twice := found.keys() & inner.keys():
            raise ValueError(f"two metrics have the name {min(twice)!r}")
        is_one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
        if not is_one and not isinstance(value, (bool, int, float, Mapping, Real)):
            shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
            takes = "self.log takes numbers, and meshctl.Image, Histogram and Table"
            raise TypeError(f"{takes}: {name!r} is a {type(value).__name__}{shape}")
        found |= inner
    return found
