"""A batch of samples: named columns with one leading sample dim, and an id for each sample.

A column is a tensor, a `Ragged` (rows of different lengths, never padded for transport) or a list of plain
data. A batch is never changed in place. Every method returns a new batch that shares memory where it can. A
batch that an endpoint receives is borrowed and valid until the call ends. An endpoint that keeps it for
longer calls `clone()`.

Ids are rows of an int64 tensor `[n, depth]`, and a sample keeps its id from loader to loss. Each sample of a
source has one number, counted since the run began. Samples that are made from sample 17 append their index,
so `repeat(8)` turns (17,) into (17, 0) ... (17, 7), whose group is (17,). Samples are ordered by id. Names
that begin with `@` are marks: columns that the runtime attaches to samples (the weight version that produced
them, their home) and that are hidden from endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor

from meshctl.runtime.batch import tensordict
from meshctl.runtime.batch.ids import children, grid_of
from meshctl.topology.samples import Grid


class BatchError(ValueError):
    """The columns do not form a batch, or ids cannot be assigned to its rows. The runtime adds the stage and
    the step to the message."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, stored one after another."""

    values: Tensor
    """`[total, ...]`: all rows, concatenated along the first dim."""
    offsets: Tensor
    """int64 `[n + 1]`: row i is `values[offsets[i]:offsets[i + 1]]`."""

    @classmethod
    def of(cls, rows: Sequence[Tensor], dtype: torch.dtype | None = None) -> Ragged:
        """Makes a `Ragged` of tensors that differ in their first dim only. `dtype` is that without rows."""
        lengths = torch.tensor([0, *map(len, rows)])
        return cls(torch.cat(list(rows)) if rows else torch.empty(0, dtype=dtype), lengths.cumsum(0))

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __getitem__(self, row: int) -> Tensor:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def rows(self) -> list[Tensor]:
        bounds = self.offsets.tolist()
        return [self.values[start:stop] for start, stop in pairwise(bounds)]

    def padded(self, fill: float = 0) -> Tensor:
        """Returns a tensor `[n, longest, ...]`, with `fill` after the end of shorter rows."""
        if not len(self):
            return self.values[None][:0]
        return torch.nn.utils.rnn.pad_sequence(self.rows(), batch_first=True, padding_value=fill)

    def between(self, start: int, stop: int) -> Ragged:
        """Returns the rows from `start` to `stop`; their values are a view."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def take(self, indices: Sequence[int]) -> Ragged:
        """Returns these rows, in this order. Consecutive rows are a view."""
        first, last = (indices[0], indices[-1]) if indices else (0, -1)
        if list(indices) == list(range(first, last + 1)):
            return self.between(first, last + 1)
        taken = [self[index] for index in indices]
        return Ragged.of(taken) if taken else Ragged(self.values[:0], self.offsets[:1] * 0)


Column = Tensor | Ragged | list[Any]


def plain_values(column: Column) -> list[Any]:
    """Returns the values of a column as plain data: for tensors numbers, or lists of them."""
    if isinstance(column, Ragged):
        return [row.tolist() for row in column.rows()]
    return column.tolist() if isinstance(column, Tensor) else column


MARK = "@"
IDS, DEPTH, MOST = MARK + "ids", MARK + "group_depth", MARK + "most"
"""Names of the entries of a TensorDict for a batch's ids, `group_depth` and `most`."""


class Batch:
    """Named columns of the same samples."""

    def __init__(
        self,
        columns: Mapping[str, Column | Sequence[Any]],
        *,
        ids: Tensor | None = None,
        group_depth: int = 0,
        most: int | None = None,
    ) -> None:
        """Without `ids` the runtime assigns them: the sample numbers of a source, the ids of the input where
        the number of rows is the same, and their children where there are k rows for each sample.

        `most` is the number of samples of the largest share among the data ranks; by default the length of
        this batch. Raises `BatchError` if columns or ids do not fit.
        """
        self._columns: dict[str, Column] = {}
        sizes: list[int] = []
        for name, column in columns.items():
            if hasattr(column, "__array__"):  # torch lacks some dtypes of numpy, such as those of texts
                with suppress(TypeError):
                    column = torch.as_tensor(column)
            if isinstance(column, Tensor):
                if not column.ndim:
                    raise BatchError(f"column {name!r} has no sample dim")
                sizes.append(column.shape[0])
            else:
                column = column if isinstance(column, (Ragged, list)) else list(column)
                sizes.append(len(column))
            self._columns[name] = column
        self._ids = None if ids is None else _checked(ids)
        if self._ids is not None:
            sizes.append(len(self._ids))
        if sizes and sizes.count(sizes[0]) != len(sizes):
            self._refuse(sizes)
        self._length = sizes[0] if sizes else 0
        self.group_depth = group_depth
        """The number of leading numbers of an id that identify its group; 0 without groups."""
        self._most = most

    def _refuse(self, sizes: Sequence[int]) -> NoReturn:
        named = zip([*self._columns, "ids"], sizes, strict=False)
        listed = ", ".join(f"{name} {size}" for name, size in named)
        raise BatchError(f"columns differ in their number of samples: {listed}")

    # Reading

    @property
    def most(self) -> int:
        """The number of samples of the largest share among the data ranks; by default the length of this
        batch."""
        return self._length if self._most is None else self._most

    @most.setter
    def most(self, count: int) -> None:
        self._most = count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str | slice) -> Any:
        """Returns a column (a Tensor, a Ragged or a list), or for a slice the batch of these rows."""
        if isinstance(name, slice):
            start, stop, step = name.indices(len(self))
            return self.between(start, max(start, stop)) if step == 1 else self.take(range(start, stop, step))
        try:
            return self._columns[name]
        except KeyError:
            raise BatchError(
                f"the batch has no column {name!r}; its columns are {', '.join(self.names) or 'none'}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return f"Batch({len(self)} samples: {', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._columns if not name.startswith(MARK))

    @property
    def columns(self) -> Mapping[str, Column]:
        """All columns, marks included."""
        return self._columns

    @property
    def has_ids(self) -> bool:
        return self._ids is not None

    @property
    def ids(self) -> Tensor:
        """int64 `[n, depth]`; the row numbers where the batch has no ids."""
        return torch.arange(len(self))[:, None] if self._ids is None else self._ids

    @property
    def known_ids(self) -> Tensor | None:
        """The ids, or None without ids."""
        return self._ids

    @cached_property
    def grid(self) -> Grid | None:
        """The ids as a grid, or None if they are not evenly numbered."""
        return grid_of(self.ids)

    @property
    def group_ids(self) -> Tensor | None:
        """int64 `[n, group_depth]`, or None without groups."""
        return self.ids[:, : self.group_depth] if self.group_depth else None

    @property
    def tokens(self) -> Ragged | None:
        """The ragged column `tokens`, or else the first ragged column; None if no column is ragged."""
        named = self._columns.get("tokens")
        if isinstance(named, Ragged):
            return named
        ragged = (
            column
            for name, column in self._columns.items()
            if isinstance(column, Ragged) and not name.startswith(MARK)
        )
        return next(ragged, None)

    @property
    def lengths(self) -> Tensor:
        """int64 `[n]`: the number of tokens of each sample; 1 where no column is ragged."""
        tokens = self.tokens
        return torch.ones(len(self), dtype=torch.int64) if tokens is None else tokens.lengths

    # Derived batches

    def _with(
        self,
        columns: Mapping[str, Column],
        ids: Tensor | None,
        most: int | None = None,
        group_depth: int | None = None,
    ) -> Batch:
        depth = self.group_depth if group_depth is None else group_depth
        return Batch(columns, ids=ids, group_depth=depth, most=self._most if most is None else most)

    def with_columns(self, **columns: Column) -> Batch:
        """Returns the same samples with these columns added or replaced."""
        return self._with({**self._columns, **columns}, self.known_ids)

    def select(self, *names: str) -> Batch:
        """Returns the same samples with only these columns. Marks are kept."""
        marks = {name: column for name, column in self._columns.items() if name.startswith(MARK)}
        return self._with({**{name: self[name] for name in names}, **marks}, self.known_ids)

    def take(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns these rows, in this order. Consecutive rows are views of this batch's memory."""
        rows = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        return self._with(
            {name: _take(column, rows) for name, column in self._columns.items()},
            _take_tensor(self.ids, rows),
        )

    def between(self, start: int, stop: int) -> Batch:
        """Returns the rows from `start` to `stop`, as views of this batch's memory."""
        if (start, stop) == (0, len(self)):
            return self
        columns: dict[str, Column] = {
            name: column.between(start, stop) if isinstance(column, Ragged) else column[start:stop]
            for name, column in self._columns.items()
        }
        return self._with(columns, self.ids[start:stop])

    def where(self, mask: Tensor | Sequence[bool]) -> Batch:
        """Returns the samples whose mask is true."""
        keep = mask.tolist() if isinstance(mask, Tensor) else list(mask)
        if len(keep) != len(self):
            raise BatchError(f"the mask has {len(keep)} entries, and the batch {len(self)} samples")
        return self.take([index for index, kept in enumerate(keep) if kept])

    def repeat(self, times: int) -> Batch:
        """Returns each sample `times` times in succession, with the ids of its children. Each sample becomes
        a group."""
        ids = children(self.ids, times)
        rows = [index for index in range(len(self)) for _ in range(times)]
        columns = {name: _take(column, rows) for name, column in self._columns.items()}
        return self._with(columns, ids, self._most and self._most * times, group_depth=ids.shape[1] - 1)

    def clone(self) -> Batch:
        """Returns a copy with memory of its own, which stays valid after the call."""
        copied = {name: _changed(column, torch.clone) for name, column in self._columns.items()}
        return self._with(copied, None if self._ids is None else self._ids.clone())

    def to(self, device: torch.device | str) -> Batch:
        """Returns this batch with its tensors on `device`. Ids stay on the CPU."""
        moved = {name: _changed(column, lambda one: one.to(device)) for name, column in self._columns.items()}
        return self._with(moved, self.known_ids)

    def minibatches(self, size: int, seed: int | None = None) -> Iterator[Batch]:
        """Yields minibatches of at most `size` samples, shuffled where a `seed` is given.

        Every data rank yields the same number of minibatches, which follows from `most`. A rank with fewer
        samples yields smaller or empty ones, so that collectives inside the loop match on all ranks.
        """
        if size < 1:
            raise BatchError(f"the size of a minibatch must be at least 1, not {size}")
        count = -(-self.most // size)
        order = list(range(len(self)))
        if seed is not None:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        rows, larger = divmod(len(self), max(count, 1))
        start = 0
        for number in range(count):
            stop = start + rows + (number < larger)
            minibatch = self.take(order[start:stop])
            minibatch.most = min(size, self.most)
            yield minibatch
            start = stop

    # TensorDict

    @classmethod
    def from_tensordict(cls, td: Any) -> Batch:
        """Returns the entries of a TensorDict as columns that share its memory. The first dim of its
        `batch_size` is the sample dim.

        Names of nested entries are joined by `.`. A jagged nested tensor becomes a `Ragged`, and
        NonTensorData a list. Raises `BatchError` if the entries are not columns.
        """
        try:
            entries, notes = tensordict.read(td, (DEPTH, MOST))
        except ValueError as error:
            raise BatchError(str(error)) from error
        ids = entries.pop(IDS, None)
        if not isinstance(ids, Tensor | None):
            raise BatchError(f"entry {IDS!r} is not a tensor")
        samples = td.batch_size[0]
        columns: dict[str, Column] = {
            name: Ragged(*entry) if isinstance(entry, tuple) else entry for name, entry in entries.items()
        }
        most = max(notes[MOST], samples) if MOST in notes else None
        batch = cls(columns, ids=ids, group_depth=notes.get(DEPTH, 0), most=most)
        if len(batch) != samples:
            raise BatchError(f"a TensorDict of {samples} samples without entries")
        return batch

    def to_tensordict(self) -> Any:
        """Returns a TensorDict of `batch_size` `[n]` that shares this batch's memory. It is the inverse of
        `from_tensordict`.

        Ids and marks become entries whose names begin with `@`, so they survive selecting, slicing and
        sorting.
        """
        entries: dict[str, tensordict.Entry] = {
            name: (column.values, column.offsets) if isinstance(column, Ragged) else column
            for name, column in self._columns.items()
        }
        if self.has_ids:
            entries[IDS] = self.ids
        notes = {DEPTH: self.group_depth} if self.group_depth else {}
        if self._most is not None:
            notes[MOST] = self._most
        try:
            return tensordict.write(entries, notes, len(self), MARK)
        except ValueError as error:
            raise BatchError(str(error)) from error

    # Joining

    @classmethod
    def concat(cls, batches: Sequence[Batch], cat: Callable[[list[Tensor]], Tensor] = torch.cat) -> Batch:
        """Returns the samples of batches with the same columns, one batch after another; `most` is the sum.

        `cat` concatenates tensors along dim 0. Raises `BatchError` if columns or id depths differ.
        """
        if not batches:
            raise BatchError("nothing to concatenate")
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        for other in batches[1:]:
            if set(other._columns) != set(first._columns):
                raise BatchError(f"columns differ: {', '.join(first.names)} and {', '.join(other.names)}")
            depths = first.ids.shape[1], other.ids.shape[1]
            if depths[0] != depths[1]:
                raise BatchError(f"ids differ in depth: {depths[0]} and {depths[1]}")
        columns = {
            name: _concat(name, [batch._columns[name] for batch in batches], cat) for name in first._columns
        }
        ids = torch.cat([batch.ids for batch in batches])
        most = None if first._most is None else sum(batch.most for batch in batches)
        return cls(columns, ids=ids, group_depth=first.group_depth, most=most)

    def joined(self, other: Batch) -> Batch:
        """Returns the same samples with the columns of both batches.

        `other` has the same ids in the same order. Raises `BatchError` if a column is in both.
        """
        twice = [name for name in other.names if name in self._columns]
        if twice:
            raise BatchError(f"column {twice[0]!r} is given twice")
        return self._with({**other._columns, **self._columns}, self.known_ids)


def _checked(ids: Tensor) -> Tensor:
    """Returns ids as int64 `[n, depth]`. Raises `BatchError` if they are no ids."""
    if ids.dtype.is_floating_point or ids.dtype.is_complex:
        raise BatchError(f"ids must be integers, not {str(ids.dtype).removeprefix('torch.')}")
    rows = (ids[:, None] if ids.ndim == 1 else ids).to(torch.int64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise BatchError(f"ids are rows of numbers, [n] or [n, depth], not {list(ids.shape)}")
    return rows


def numbered(batch: Batch, first: int, most: int) -> Batch:
    """Returns the samples of a batch, at least one, with `first` and the numbers after it as their ids."""
    return Batch(batch.columns, ids=torch.arange(first, first + len(batch)), most=most)


def identify(result: Batch, given: Batch | None) -> Batch:
    """Returns the result of an endpoint with ids and marks: its own where it has them, else those that follow
    from its input.

    Raises `BatchError` if a result without ids has neither one row nor k rows for each sample of the
    input.
    """
    if given is None:
        return result
    if not result.has_ids:
        times, rest = divmod(len(result), len(given)) if len(given) else (1, len(result))
        if rest or (len(result) and not times):
            raise BatchError(
                f"{len(result)} rows were made from {len(given)} samples: "
                "state their ids with batch.where, batch.take or ids="
            )
        if times > 1:
            listed = children(given.ids, times)
            result = Batch(
                result.columns, ids=listed, group_depth=listed.shape[1] - 1, most=given.most * times
            )
        else:
            ids = given.ids[: len(result)]
            result = Batch(result.columns, ids=ids, group_depth=given.group_depth, most=given.most)
    missing = [name for name in given.columns if name.startswith(MARK) and name not in result]
    if not missing:
        return result
    depth = given.ids.shape[1]
    row_of = {tuple(id): row for row, id in enumerate(given.ids.tolist())}
    try:
        rows = [row_of[tuple(id[:depth])] for id in result.ids.tolist()]
    except KeyError:
        return result  # the endpoint made samples that do not descend from its input
    marks = given.select().take(rows)
    return result.with_columns(**{name: marks[name] for name in missing})


def _changed(column: Column, act: Callable[[Tensor], Tensor]) -> Column:
    if isinstance(column, Ragged):
        return Ragged(act(column.values), act(column.offsets))
    return act(column) if isinstance(column, Tensor) else list(column)


def _take(column: Column, rows: list[int]) -> Column:
    if isinstance(column, Tensor):
        return _take_tensor(column, rows)
    return column.take(rows) if isinstance(column, Ragged) else [column[row] for row in rows]


def _take_tensor(column: Tensor, rows: list[int]) -> Tensor:
    if not rows:
        return column[:0]
    if rows == list(range(rows[0], rows[0] + len(rows))):  # consecutive rows are a view
        return column[rows[0] : rows[0] + len(rows)]
    return column[torch.tensor(rows, device=column.device)]


def _concat(name: str, parts: list[Column], cat: Callable[[list[Tensor]], Tensor]) -> Column:
    devices = {str(part.device) for part in parts if isinstance(part, Tensor)}
    if len(devices) > 1:
        raise BatchError(f"column {name!r} is on {' here and on '.join(sorted(devices))} there")
    if all(isinstance(part, Tensor) for part in parts):
        return cat([part for part in parts if isinstance(part, Tensor)])
    if all(isinstance(part, Ragged) for part in parts):
        ragged = [part for part in parts if isinstance(part, Ragged)]
        lengths = torch.cat([part.lengths for part in ragged])
        filled = [part.values for part in ragged if len(part.values)] or [ragged[0].values]
        return Ragged(cat(filled), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    if all(isinstance(part, list) for part in parts):
        return [item for part in parts if isinstance(part, list) for item in part]
    raise BatchError(f"column {name!r} is a tensor here and something else there")
