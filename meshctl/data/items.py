"""Creates a user's dataset or loader by its dotted path, and converts its items to columns of a batch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meshctl.data.columns import DTYPES
from meshctl.data.errors import DataError
from meshctl.runtime.batch.batch import Column, Ragged


def maker(path: str, options: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Returns a function without parameters that calls the class or function at the dotted path `path` with
    `options`. Raises `DataError` if the path does not exist, or if the class or function does not accept
    `options`."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None) if module else None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
    if not callable(found):
        raise DataError(f"`{path}` is not the dotted path of a class or a function")
    try:
        inspect.signature(found).bind(**(options or {}))
    except TypeError as error:
        raise DataError(f"`options` of {path}: {error}") from None
    return partial(found, **(options or {}))


def columns_of(items: Sequence[Any], names: Sequence[str], ragged: Sequence[str]) -> dict[str, Column]:
    """Returns the columns of items, each of which is a mapping or a tuple.

    `names` names the parts of tuples, or selects keys of mappings. `ragged` names the columns whose rows
    differ in length. Raises `DataError` if items differ in their names, or if the rows of a column that is
    not ragged differ in shape.
    """
    rows = [named(item, names) for item in items]
    if unknown := [name for name in ragged if name not in rows[0]]:
        raise DataError(f"`ragged` names {unknown[0]}, the items have {', '.join(rows[0])}")
    for row in rows:
        if row.keys() != rows[0].keys():
            raise DataError(f"an item has {', '.join(row)}, another one {', '.join(rows[0])}")
    return {name: _column(name, [row[name] for row in rows], name in ragged) for name in rows[0]}


def named(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the parts of an item: column name -> value. `names` names the parts of a tuple, or selects keys
    of a mapping; if it is empty, all keys are used. Raises `DataError` if a tuple has more or fewer parts
    than names."""
    if isinstance(item, Mapping):
        return {str(name): item[name] for name in (names or item)}
    parts = item if isinstance(item, (tuple, list)) else [item]
    if len(parts) != len(names):
        raise DataError(
            f"an item has {len(parts)} parts and `columns` names {len(names)}: name each part in `columns`"
        )
    return dict(zip(names, parts, strict=True))


def _column(name: str, values: list[Any], is_ragged: bool) -> Column:
    if all(type(value) in DTYPES for value in values):
        kinds = {type(value) for value in values}
        return torch.tensor(values, dtype=DTYPES[float if float in kinds else type(values[0])])
    tensors = [_tensor(value) for value in values]
    found = [tensor for tensor in tensors if tensor is not None]
    if len(found) < len(values):
        return values
    if is_ragged:
        return Ragged.of(found)
    if len({tensor.shape for tensor in found}) > 1:
        raise DataError(f"rows of `{name}` differ in shape: name it in `ragged`")
    return torch.stack(found)


def _tensor(value: Any) -> Tensor | None:
    """Returns `value` as a tensor if it is a tensor or a numpy array; None for other values."""
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value) if hasattr(value, "__array_interface__") else None
