"""Samples on their way: named columns with one leading sample dim, and an id for each sample from loader to
loss.

A column is a tensor, a `Ragged` (rows of different length, never padded for transport) or a list of plain
data. A batch is never changed in place: every method gives a new one that shares what it can. A batch that an
endpoint receives is borrowed, it lives until the call ends; who keeps one beyond that says `clone()`.

Ids are rows of an int64 tensor `[n, depth]`. A source's samples have one number each, counted since the run
began; samples made from sample 17 append their place, so `repeat(8)` turns (17,) into (17, 0) ... (17, 7),
and their group is (17,). Sample order is the order of ids. Names that begin with `@` are marks: columns that
the runtime hangs on samples (the weight version that made them, their home) and that travel with them unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.batch import tensordict
from meshctl.runtime.batch.ids import grid_of, ids_of
from meshctl.topology.samples import Grid


class BatchError(ValueError):
    """Columns that do not make a batch, or rows that cannot be told apart; the runtime adds stage and step."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different length, laid end to end."""

    values: Tensor
    """`[total, ...]`, all rows one after another."""
    offsets: Tensor
    """int64 `[n + 1]`: row i is `values[offsets[i]:offsets[i + 1]]`."""

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Ragged:
        """From a list of tensors that differ in their first dim only."""
        lengths = torch.tensor([0, *map(len, rows)])
        return cls(torch.cat(list(rows)) if rows else torch.empty(0), lengths.cumsum(0))

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tensor:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def rows(self) -> list[Tensor]:
        bounds = self.offsets.tolist()
        return [self.values[start:stop] for start, stop in pairwise(bounds)]

    def padded(self, fill: float = 0) -> Tensor:
        """`[n, longest, ...]`, for a model that wants it so."""
        return (
            torch.nn.utils.rnn.pad_sequence(self.rows(), batch_first=True, padding_value=fill)
            if len(self)
            else self.values[None][:0]
        )

    def between(self, start: int, stop: int) -> Ragged:
        """Neighbouring rows, whose values are a view."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def take(self, indices: Sequence[int]) -> Ragged:
        first, last = (indices[0], indices[-1]) if indices else (0, -1)
        if list(indices) == list(range(first, last + 1)):
            return self.between(first, last + 1)
        taken = [self[index] for index in indices]
        return Ragged.of(taken) if taken else Ragged(self.values[:0], self.offsets[:1] * 0)


Column = Tensor | Ragged | list[Any]
MARK = "@"
IDS, DEPTH, MOST = MARK + "ids", MARK + "group_depth", MARK + "most"
"""How a TensorDict carries what a batch knows beside its columns."""


class Batch:
    """Named columns over the same samples."""

    def __init__(
        self,
        columns: Mapping[str, Column | Sequence[Any]],
        *,
        ids: Tensor | Grid | None = None,
        group_depth: int = 0,
        most: int | None = None,
    ) -> None:
        """`ids` left out: the runtime gives them (a source's numbers; those of the input where the row count
        is the same; its children where there are k rows for each). `most` is the largest share among the data
        ranks; alone, the batch's own length.
        """
        self._columns: dict[str, Column] = {}
        sizes: list[int] = []
        for name, column in columns.items():
            if isinstance(column, Tensor):
                if not column.ndim:
                    raise BatchError(f"column {name!r} has no sample dim")
                sizes.append(column.shape[0])
            else:
                column = column if isinstance(column, (Ragged, list)) else list(column)
                sizes.append(len(column))
            self._columns[name] = column
        self._grid: Grid | None = None
        """Of the ids, where that was asked for."""
        self._ids: Tensor | None = None
        if isinstance(ids, Tensor):
            if ids.dtype.is_floating_point or ids.dtype.is_complex:
                raise BatchError(f"ids are whole numbers, not {str(ids.dtype).removeprefix('torch.')}")
            self._ids = (ids[:, None] if ids.ndim == 1 else ids).to(torch.int64)
            if self._ids.ndim != 2 or not self._ids.shape[1]:
                raise BatchError(f"ids are rows of numbers, [n] or [n, depth], not {list(ids.shape)}")
            sizes.append(self._ids.shape[0])
        elif ids is not None:
            self._grid = ids
            sizes.append(len(ids))
        if sizes and sizes.count(sizes[0]) != len(sizes):
            named = zip([*self._columns, "ids"], sizes, strict=False)
            raise BatchError(
                "columns differ in their number of samples: "
                + ", ".join(f"{name} {size}" for name, size in named)
            )
        self._length = sizes[0] if sizes else 0
        self.group_depth = group_depth
        """How many leading numbers of an id are its group's; 0 where samples belong to no group."""
        self._most = most

    # Reading

    @property
    def most(self) -> int:
        """Samples of the largest share among the data ranks; alone, the batch's own length."""
        return self._length if self._most is None else self._most

    @most.setter
    def most(self, count: int) -> None:
        self._most = count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str | slice) -> Any:
        """The column: a Tensor, a Ragged or a list. A slice gives the batch of these rows."""
        if isinstance(name, slice):
            start, stop, step = name.indices(len(self))
            return self.between(start, max(start, stop)) if step == 1 else self.take(range(start, stop, step))
        try:
            return self._columns[name]
        except KeyError:
            raise BatchError(
                f"there is no column {name!r}, there are {', '.join(self.names) or 'none'}"
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
        return self._ids is not None or self._grid is not None

    @property
    def ids(self) -> Tensor:
        """int64 `[n, depth]`; a batch that was given none counts its rows."""
        if self._ids is None and self._grid is not None:
            self._ids = ids_of(self._grid, 0, self._length)
        return torch.arange(len(self))[:, None] if self._ids is None else self._ids

    @property
    def grid(self) -> Grid | None:
        """The ids, where they are numbered evenly: nobody need list them."""
        if self._grid is None and self._ids is not None:
            self._grid = grid_of(self._ids)
        return self._grid if self.has_ids or not self._length else Grid(0, (self._length,))

    @property
    def known_ids(self) -> Tensor | Grid | None:
        """The ids, not listed where they are known to be numbered evenly; none where the batch was given
        none."""
        return self._ids if self._grid is None else self._grid

    @property
    def group_ids(self) -> Tensor | None:
        """int64 `[n, depth of the group]`, or none where samples belong to no group."""
        return self.ids[:, : self.group_depth] if self.group_depth else None

    @property
    def tokens(self) -> Ragged | None:
        """The ragged column `tokens`, or the first ragged one."""
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
        """int64 `[n]`: the tokens of each sample; 1 where no column is ragged."""
        tokens = self.tokens
        return torch.ones(len(self), dtype=torch.int64) if tokens is None else tokens.lengths

    # Making others

    def _with(
        self,
        columns: Mapping[str, Column],
        ids: Tensor | Grid | None,
        most: int | None = None,
        group_depth: int | None = None,
    ) -> Batch:
        depth = self.group_depth if group_depth is None else group_depth
        return Batch(columns, ids=ids, group_depth=depth, most=self._most if most is None else most)

    def with_columns(self, **columns: Column) -> Batch:
        """The same samples with these columns added or replaced."""
        return self._with({**self._columns, **columns}, self.known_ids)

    def select(self, *names: str) -> Batch:
        """Only these columns; marks stay."""
        marks = {name: column for name, column in self._columns.items() if name.startswith(MARK)}
        return self._with({**{name: self[name] for name in names}, **marks}, self.known_ids)

    def take(self, indices: Sequence[int] | Tensor) -> Batch:
        """These rows, in this order; neighbours are views of this batch's memory."""
        rows = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        return self._with(
            {name: _take(column, rows) for name, column in self._columns.items()},
            _take_tensor(self.ids, rows),
        )

    def between(self, start: int, stop: int) -> Batch:
        """These neighbouring rows, as views of this batch's memory."""
        if (start, stop) == (0, len(self)):
            return self
        return self._with(
            {name: _between(column, start, stop) for name, column in self._columns.items()},
            self._ids_between(start, stop),
        )

    def _ids_between(self, start: int, stop: int) -> Tensor | Grid:
        if self._grid is not None and len(self._grid.shape) == 1 and start < stop:
            return Grid(self._grid.start + start, (stop - start,))
        return self.ids[start:stop]

    def where(self, mask: Tensor | Sequence[bool]) -> Batch:
        """The samples whose mask is true; the others are dropped."""
        keep = mask.tolist() if isinstance(mask, Tensor) else list(mask)
        if len(keep) != len(self):
            raise BatchError(f"a mask of {len(keep)} for {len(self)} samples")
        return self.take([index for index, kept in enumerate(keep) if kept])

    def repeat(self, times: int) -> Batch:
        """Each sample `times` times, one after another, as its children: one group per sample."""
        ids = children(self.ids, times)
        rows = [index for index in range(len(self)) for _ in range(times)]
        columns = {name: _take(column, rows) for name, column in self._columns.items()}
        return self._with(columns, ids, self._most and self._most * times, group_depth=ids.shape[1] - 1)

    def clone(self) -> Batch:
        """A copy of its own memory, to keep beyond the call."""
        copied: dict[str, Column] = {
            name: Ragged(column.values.clone(), column.offsets.clone())
            if isinstance(column, Ragged)
            else column.clone()
            if isinstance(column, Tensor)
            else list(column)
            for name, column in self._columns.items()
        }
        return self._with(copied, self._ids.clone() if self._ids is not None else self._grid)

    def to(self, device: torch.device | str) -> Batch:
        moved: dict[str, Column] = {
            name: Ragged(column.values.to(device), column.offsets.to(device))
            if isinstance(column, Ragged)
            else column.to(device)
            if isinstance(column, Tensor)
            else column
            for name, column in self._columns.items()
        }
        return self._with(moved, self.known_ids)

    def minibatches(self, size: int, seed: int | None = None) -> Iterator[Batch]:
        """Cuts of at most `size` samples, shuffled by `seed` where one is given.

        Every data rank gives the same number of them (`most` says how many that are), so a rank with fewer
        samples gives smaller or empty ones: collectives inside the loop always meet.
        """
        if size < 1:
            raise BatchError(f"a minibatch has at least 1 sample, not {size}")
        count = -(-self.most // size)
        order = list(range(len(self)))
        if seed is not None:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        each, more = divmod(len(self), max(count, 1))
        start = 0
        for part in range(count):
            stop = start + each + (part < more)
            cut = self.take(order[start:stop])
            cut.most = min(size, self.most)
            yield cut
            start = stop

    # TensorDict

    @classmethod
    def from_tensordict(cls, td: Any) -> Batch:
        """The entries of a TensorDict as columns that share its memory; the first dim of its `batch_size` is
        the sample dim.

        Nested entries get names that are joined by `.`, jagged nested tensors become `Ragged`, NonTensorData
        lists.
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
        """A TensorDict of `batch_size` `[n]` that shares this batch's memory: the way back of
        `from_tensordict`.

        Ids and marks go with it, as entries whose names begin with `@`: what is selected, cut or sorted there
        is known here again.
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
        """One after another. They have the same columns; `most` is the sum. `cat` joins tensors along dim 0."""
        if not batches:
            raise BatchError("nothing to concatenate")
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        for other in batches[1:]:
            if set(other._columns) != set(first._columns):
                raise BatchError(f"columns differ: {', '.join(first.names)} and {', '.join(other.names)}")
            if other.ids.shape[1] != first.ids.shape[1]:
                raise BatchError(f"ids differ in depth: {first.ids.shape[1]} and {other.ids.shape[1]}")
        columns = {
            name: _concat(name, [batch._columns[name] for batch in batches], cat) for name in first._columns
        }
        ids = torch.cat([batch.ids for batch in batches])
        most = None if first._most is None else sum(batch.most for batch in batches)
        return cls(columns, ids=ids, group_depth=first.group_depth, most=most)

    def joined(self, other: Batch) -> Batch:
        """This batch's samples with the columns of both; the other has the same ids in the same order. A
        column given twice is an error."""
        twice = [name for name in other.names if name in self._columns]
        if twice:
            raise BatchError(f"column {twice[0]!r} is given twice")
        return self._with({**other._columns, **self._columns}, self.known_ids)


def children(ids: Tensor, times: int) -> Tensor:
    """Ids `[n, depth]` -> `[n * times, depth + 1]`: each with its children's places."""
    places = torch.arange(times).repeat(len(ids))[:, None]
    return torch.cat([ids.repeat_interleave(times, 0), places], 1)


def identify(result: Batch, given: Batch | None) -> Batch:
    """What an endpoint gave, with ids and marks: its own where it said them, else those of what it was given.

    Raises `BatchError` where the rows cannot be told apart: neither the same number nor k for each.
    """
    if given is None:
        return result
    if not result.has_ids:
        times, rest = divmod(len(result), len(given)) if len(given) else (1, len(result))
        if rest or (len(result) and not times):
            raise BatchError(
                f"{len(result)} rows came out of {len(given)} samples: say their ids, by batch.where, batch.take or ids="
            )
        if times > 1:
            listed = children(given.ids, times)
            result = Batch(
                result.columns, ids=listed, group_depth=listed.shape[1] - 1, most=given.most * times
            )
        else:
            ids = (given.known_ids if given.has_ids else given.ids) if times else given.ids[:0]
            result = Batch(result.columns, ids=ids, group_depth=given.group_depth, most=given.most)
    missing = [name for name in given.columns if name.startswith(MARK) and name not in result]
    if not missing:
        return result
    depth = given.ids.shape[1]
    where = {tuple(id): row for row, id in enumerate(given.ids.tolist())}
    try:
        rows = [where[tuple(id[:depth])] for id in result.ids.tolist()]
    except KeyError:
        return result  # samples of the endpoint's own making come from nowhere
    return result.with_columns(**{name: _take(given[name], rows) for name in missing})


def _between(column: Column, start: int, stop: int) -> Column:
    return column.between(start, stop) if isinstance(column, Ragged) else column[start:stop]


def _take(column: Column, rows: list[int]) -> Column:
    if isinstance(column, Tensor):
        return _take_tensor(column, rows)
    return column.take(rows) if isinstance(column, Ragged) else [column[row] for row in rows]


def _take_tensor(column: Tensor, rows: list[int]) -> Tensor:
    if not rows:
        return column[:0]
    if rows == list(range(rows[0], rows[0] + len(rows))):  # neighbours: a view
        return column[rows[0] : rows[0] + len(rows)]
    return column[torch.tensor(rows, device=column.device)]


def _concat(name: str, parts: list[Column], cat: Callable[[list[Tensor]], Tensor]) -> Column:
    if len(devices := {str(part.device) for part in parts if isinstance(part, Tensor)}) > 1:
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
