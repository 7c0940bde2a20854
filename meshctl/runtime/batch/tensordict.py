"""Conversion between a TensorDict of the library `tensordict` and plain columns.

The library is optional; only `write` imports it. Names of entries in nested TensorDicts are joined by `.`,
and names with dots become nested TensorDicts again. A jagged nested tensor is a pair (values, offsets), and
data other than tensors is a list with an item for each sample. Notes are integers about all samples together.
They are entries of their own, so that they exist in a TensorDict without samples, too. Nothing is pickled.
`batch.py` converts the columns to batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Rows = tuple[Tensor, Tensor]
"""Values `[total, ...]`, and int64 offsets `[n + 1]` of the rows in them."""
Entry = Tensor | Rows | list[Any]


def is_tensordict(value: Any) -> bool:
    """Returns whether a value is a TensorDict, without an import of the library.

    The class may be missing from the loaded module while another thread imports it.
    """
    return isinstance(value, getattr(sys.modules.get("tensordict"), "TensorDictBase", ()))


def read(td: Any, noted: tuple[str, ...]) -> tuple[dict[str, Entry], dict[str, int]]:
    """Returns the entries by name and, separately, the notes, which are the entries named in `noted`.

    Raises `ValueError` if an entry is not a column.
    """
    if not is_tensordict(td):
        raise ValueError(f"expected a TensorDict, not a {type(td).__name__}")
    if not td.batch_size:
        raise ValueError(
            "a TensorDict without batch dim has no samples: "
            "its batch_size is [], it should be [number of samples]"
        )
    columns: dict[str, Entry] = {}
    notes: dict[str, int] = {}
    for name, value in _leaves(td):
        if name in columns or name in notes:
            raise ValueError(f"entry {name!r} is given twice: nested, and with a dot in its name")
        if name in noted:
            notes[name] = _note(name, value)
        else:
            columns[name] = _entry(name, value)
    return columns, notes


def write(columns: Mapping[str, Entry], notes: Mapping[str, int], samples: int, whole: str) -> Any:
    """Returns a TensorDict of `batch_size` `[samples]`. Names that begin with `whole` are not split at dots.

    Raises `ImportError` if the library is missing, and `ValueError` if a name is both an entry and a
    nested TensorDict.
    """
    try:
        from tensordict import NonTensorData, NonTensorStack, TensorDict
    except ModuleNotFoundError as error:
        raise ImportError(
            "a TensorDict needs the library tensordict, which is not installed: pip install tensordict"
        ) from error

    def made(column: Entry) -> Any:
        if isinstance(column, tuple):
            values, offsets = column
            return torch.nested.nested_tensor_from_jagged(values, offsets.to(values.device))
        if isinstance(column, Tensor):
            return column
        # A stack of no items has no stack dim.
        return NonTensorStack(*map(NonTensorData, column)) if column else NonTensorData(None, batch_size=[0])

    tree: dict[str, Any] = {}
    for name, column in columns.items():
        *outer, last = [name] if name.startswith(whole) else name.split(".")
        inner: Any = tree
        for part in outer:
            inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last in inner:
            raise ValueError(
                f"column {name!r} is nested in a name that is a column itself, or has columns nested in it"
            )
        inner[last] = made(column)
    for name, number in notes.items():
        tree[name] = NonTensorData(number, batch_size=[samples])
    return TensorDict(tree, batch_size=[samples])


def _leaves(td: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    library = sys.modules["tensordict"]
    for key in _keys(td):
        value = _got(td, key, prefix + key)
        if library.is_tensor_collection(value) and not library.is_non_tensor(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _keys(td: Any) -> list[str]:
    """Returns the keys of a TensorDict.

    A lazy stack lists only the keys that all its parts have. Raises `ValueError` rather than lose the others.
    """
    keys = list(td.keys())
    for part in getattr(td, "tensordicts", ()):
        if missing := sorted(set(part.keys()) - set(keys)):
            raise ValueError(f"entry {missing[0]!r} is not in every sample of a lazy stack")
    return keys


def _got(td: Any, key: str, name: str) -> Any:
    """Returns an entry. Rows of different lengths in a lazy stack are returned as a nested tensor."""
    try:
        return td.get(key)
    except RuntimeError as error:
        try:
            return td.get(key, as_nested_tensor=True)
        except (RuntimeError, TypeError):
            raise ValueError(f"entry {name!r} cannot be read: {error}") from error


def _note(name: str, value: Any) -> int:
    """Returns the number of a note. Where TensorDicts with different numbers were concatenated, it is the
    largest."""
    items = value.tolist() if hasattr(value, "tolist") else None
    numbers = [number for number in items or [getattr(value, "data", None)] if isinstance(number, int)]
    if not numbers or (items and len(numbers) < len(items)):
        raise ValueError(f"entry {name!r} is not a whole number")
    return max(numbers)


def _entry(name: str, value: Any) -> Entry:
    if isinstance(value, Tensor):
        return _rows(name, value) if value.is_nested else value
    if sys.modules["tensordict"].is_non_tensor(value):
        return list(value.tolist())
    raise ValueError(
        f"entry {name!r} is a {type(value).__name__}: there are tensors, nested TensorDicts and NonTensorData"
    )


def _rows(name: str, nested: Any) -> Rows:
    """Returns the values and offsets of a nested tensor whose rows differ in their first dim only.

    A contiguous jagged tensor is not copied.
    """
    if nested.layout is torch.jagged and nested.lengths() is None and not isinstance(nested.shape[1], int):
        offsets = nested.offsets().to(torch.int64)
        return nested.values()[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]
    rows = nested.unbind()
    if len({row.shape[1:] for row in rows}) > 1 or any(not row.ndim for row in rows):
        raise ValueError(f"entry {name!r} is a nested tensor whose rows differ in more than their first dim")
    bounds = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return (torch.cat(list(rows)) if rows else torch.empty(0, dtype=nested.dtype)), bounds.to(nested.device)
