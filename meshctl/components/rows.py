"""Sources that read a JSON-lines file: `Rows` reads it once, `Cycle` endlessly.

    components:
      problems: {_target_: meshctl.components.Rows, group: rollout, args: {path: data/train.jsonl}}
    pipeline:
      batch: {call: problems.next, samples: 64}

Each line is an object with the same keys, and each key becomes a column: numbers become a tensor, lists of
numbers a `Ragged`, and anything else plain data. The whole file is read into memory. The order of each epoch
depends only on `seed` and the epoch's number. So sample 1234 is the same row on any mesh and after any
resume, and the number of samples is the only position to save.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from meshctl.data.errors import RowError
from meshctl.data.rows import open_rows
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.component import Component, endpoint


class Cycle(Component):
    """Repeats the rows of a file endlessly. `run.steps` or another source ends the run."""

    def __init__(self, path: str, seed: int = 0, shuffle: bool = True) -> None:
        """`path` is the file (`data.rows.open_rows`). `seed` decides the order of the rows in each epoch;
        without `shuffle` it is that of the file."""
        self.seed, self.shuffle = seed, shuffle
        self.rows = read(path)
        self._order: tuple[int, Sequence[int]] = (-1, ())

    @endpoint
    def next(self, samples: range) -> Batch:
        """Returns the rows of the sample numbers `samples`, which continue across epochs."""
        positions = [divmod(number, len(self.rows)) for number in samples]
        rows = self.rows.take([self._order_of(epoch)[position] for epoch, position in positions])
        return Batch(rows.columns, ids=torch.tensor(samples, dtype=torch.int64))

    def _order_of(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.rows))
        if self._order[0] != epoch:
            order = list(range(len(self.rows)))
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1]


class Rows(Cycle):
    """Reads the rows of a file once, or `run.epochs` times. Then the run ends."""

    def __len__(self) -> int:
        return len(self.rows)


def read(path: str) -> Batch:
    """Returns the columns of a file. Raises `DataError`."""
    lines = open_rows(path, "")
    rows = [lines[number] for number in range(len(lines))]
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            problem = f"this row has the keys {', '.join(row)}, the first has {', '.join(rows[0])}"
            raise RowError(lines.place(number), problem)
    return Batch({key: column([row[key] for row in rows]) for key in rows[0]})


def column(values: list[Any]) -> Tensor | Ragged | list[Any]:
    """Returns the values of a key as a column of a batch."""
    if all(map(_is_number, values)):
        return torch.tensor(values, dtype=_dtype(values))
    if all(isinstance(value, list) and all(map(_is_number, value)) for value in values):
        dtype = _dtype(list(chain.from_iterable(values)))
        return Ragged.of([torch.tensor(value, dtype=dtype) for value in values])
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _dtype(values: list[Any]) -> torch.dtype:
    if values and all(isinstance(value, bool) for value in values):
        return torch.bool
    return torch.float32 if any(isinstance(value, float) for value in values) else torch.int64
