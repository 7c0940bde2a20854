"""Converts examples and kept values of rows to columns of a batch.

The first row of the data determines the dtype of a kept column. The samples of a rank do not affect this
dtype, because all ranks must send the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshctl.data.encoders import Example
from meshctl.data.errors import DataError
from meshctl.data.rows import Row
from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Column, Ragged

DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float32}
ACCEPTED: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}
"""Type of a column -> types of the values that it accepts."""


def ragged(examples: Sequence[Example], names: Sequence[str]) -> dict[str, Column]:
    """Returns the ragged int64 columns `names` of the examples, with one row for each example."""
    rows = {name: [torch.tensor(one[name], dtype=torch.int64) for one in examples] for name in names}
    empty = Ragged(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    return {name: Ragged.of(column) if column else empty for name, column in rows.items()}


@dataclass(frozen=True)
class Kept:
    """A key of the rows that becomes a column of the batch."""

    name: str
    kind: type
    """The type of the numbers, `bool`, `int` or `float`; `object` for all other values."""
    is_list: bool
    """True if each value is a list of numbers of the type `kind`."""

    @classmethod
    def of(cls, name: str, row: Row) -> Kept:
        """Returns the column of the key `name`, with the type of the value in the first row `row`. Raises
        `DataError` if the row does not have this key."""
        value = _value(row, name)
        is_list = isinstance(value, list) and bool(value)
        kinds = {type(one) for one in value} if is_list else {type(value)}
        if kinds == {int, float}:
            kinds = {float}
        kind = kinds.pop() if len(kinds) == 1 else object
        return cls(name, kind, is_list) if kind in DTYPES else cls(name, object, False)

    def value(self, row: Row) -> Any:
        """Returns the value of the key in a row. Raises `DataError` if the value does not have the type of
        this column."""
        value = _value(row, self.name)
        if self.kind is object:
            return value
        is_list = isinstance(value, list)
        accepted = ACCEPTED[self.kind]
        if is_list != self.is_list or any(
            type(one) not in accepted for one in (value if is_list else [value])
        ):
            expected = f"list of {self.kind.__name__}" if self.is_list else self.kind.__name__
            raise DataError(f"`{self.name}` is {value!r:.40}, the first row has a value of type {expected}")
        return value

    def column(self, values: Sequence[Any]) -> Column:
        if self.kind is object:
            return list(values)
        dtype = DTYPES[self.kind]
        if not self.is_list:
            return torch.tensor(values, dtype=dtype)
        empty = Ragged(torch.empty(0, dtype=dtype), torch.zeros(1, dtype=torch.int64))
        return Ragged.of([torch.tensor(value, dtype=dtype) for value in values]) if values else empty


def _value(row: Row, name: str) -> Any:
    if name not in row:
        raise DataError(f"the row has no `{name}`, which `keep` names")
    return row[name]
