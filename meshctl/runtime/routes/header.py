"""What the speakers of a route tell one another, and those who hear them, in every step: a row each.

    a batch        [form, ids, numbers]: its ids, the kinds of its columns, which of them others could map,
                   and the lengths of what is
                   ragged: all that others need to lay it out
    a plain value  [value, weight]
    an end         []

A row is told as bytes, which pass from its speaker to all others as they are. Its form is mostly that of the
step before, so it is read once. A row is input: it is checked before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshctl.runtime.batch.batch import MARK, Batch, BatchError, Column, Ragged
from meshctl.runtime.batch.ids import ids_of
from meshctl.runtime.routes.rows import Piece, dtype_of, kind_of, packed, pieces_of, row_index
from meshctl.runtime.transports.buffers.frames import Frame, FrameError, fits, not_sent, unpack
from meshctl.runtime.transports.buffers.memcpy import is_mappable
from meshctl.topology.modes import Dispatch
from meshctl.topology.samples import Grid, Id, Run, SampleTable

FORMS = 64
"""How many forms are kept."""
MOST = 1 << 31
"""Samples that one speaker may say it has."""
_WIDE = 1 << 63
FEW = 4
ROWS_PER_RUN = 16
"""Few or long runs are joined one by one; of others, rows are picked by an index."""


@dataclass(frozen=True)
class Form:
    """What is mostly the same in a speaker's next batch."""

    shape: tuple[int, ...]
    """Of the grid of its ids; empty where they are listed."""
    groups: int
    """How many leading numbers of an id are its group's."""
    columns: Mapping[str, Sequence[Any]]
    """Column -> kind, dtype, shape of a row."""
    ragged: Mapping[str, int]
    """Which of the row's numbers are the lengths of a ragged column; none where nobody else writes to its
    frame."""
    lengths: int | None
    """Which of them are the tokens of each sample, where the dispatch balances."""
    homes: int | None
    """Which of them are the data ranks that samples go home to."""
    mappable: Sequence[str] = ()
    """Columns that lie so that those who get them can map what others give them before and after."""

    @cached_property
    def told(self) -> bytes:
        return Frame(
            [
                list(self.shape),
                self.groups,
                self.columns,
                self.ragged,
                self.lengths,
                self.homes,
                [*self.mappable],
            ]
        ).inline()

    @cached_property
    def count(self) -> int:
        """Of the samples, where they are a grid."""
        return prod(self.shape)

    @cached_property
    def least_numbers(self) -> int:
        """How many numbers a row of this form has at least."""
        return 1 + max(
            (index for index in (*self.ragged.values(), self.lengths, self.homes) if index is not None),
            default=-1,
        )

    @cached_property
    def by_number(self) -> bool:
        """Whether its samples are shared out by their number alone."""
        return bool(self.shape) and self.lengths is None and self.homes is None


class Row(NamedTuple):
    """What one speaker holds; an end where there is neither a form nor a weight."""

    form: Form | None = None
    ids: Any = None
    """The first number of the grid's first id, or int64 `[n, depth]`."""
    numbers: Sequence[Tensor] = ()
    """int64 `[n]` each."""
    value: Any = None
    weight: float | None = None

    @property
    def ended(self) -> bool:
        return self.form is None and self.weight is None


# Telling


def batch_row(
    batch: Batch,
    dispatch: Dispatch,
    *,
    alone: bool,
    lies_mappable: Callable[[Tensor], bool] = lambda tensor: False,
) -> Row:
    """Of a batch; lengths of ragged columns, and how others lie, only where several speakers may write one
    frame, tokens and homes where they decide."""
    numbers: list[Tensor] = []
    known: dict[int, int] = {}
    columns = batch.columns.items()
    _check(batch.columns)
    kinds = tuple([(name, *_kind(column)) for name, column in columns])
    laid = [name for name, kind, *_ in kinds if kind == "ragged" and not alone]
    ragged = tuple([(name, _put(batch[name], known, numbers)) for name in laid])
    lengths = homes = None
    if dispatch.balance and (tokens := batch.tokens) is not None:
        lengths = _put(tokens, known, numbers)
    elif dispatch.balance:
        lengths = len(numbers)
        numbers.append(batch.lengths)
    if dispatch.home:
        homes = len(numbers)
        numbers.append(batch[MARK + "home." + dispatch.home])
    mappable = (
        ()
        if alone
        else tuple([name for name, column in columns if isinstance(column, Tensor) and lies_mappable(column)])
    )
    grid = batch.grid
    form = _form(
        grid.shape if grid is not None else (), batch.group_depth, kinds, ragged, lengths, homes, mappable
    )
    return Row(form, batch.ids if grid is None else grid.start, numbers)


def _check(columns: Mapping[str, Column]) -> None:
    """What an endpoint gave is columns: who copies rows asks for no more than where they are."""
    fit: set[tuple[int, int]] = set()
    for name, column in columns.items():
        tensor = column.values if isinstance(column, Ragged) else column
        if isinstance(tensor, Tensor) and (why := not_sent(tensor)):
            raise BatchError(f"column {name!r}: {why}")
        if isinstance(column, Ragged) and (alike := (id(column.offsets), len(column.values))) not in fit:
            if not fits(column.values, column.offsets):
                raise BatchError(f"column {name!r} is ragged, and its offsets do not fit its values")
            fit.add(alike)


def _put(column: Ragged, known: dict[int, int], numbers: list[Tensor]) -> int:
    """Which of the numbers a column's lengths are; columns that share their offsets share them."""
    if id(column.offsets) not in known:
        known[id(column.offsets)] = len(numbers)
        numbers.append(column.lengths)
    return known[id(column.offsets)]


def _kind(column: Column) -> tuple[Any, ...]:
    kind = kind_of(column)
    if kind == "tensor" and isinstance(column, Tensor):
        return kind, column.dtype, column.shape[1:]
    return (
        (kind, column.values.dtype, column.values.shape[1:])
        if kind == "ragged" and isinstance(column, Ragged)
        else (kind,)
    )


@lru_cache(FORMS)
def _form(
    shape: tuple[int, ...],
    groups: int,
    kinds: tuple[tuple[Any, ...], ...],
    ragged: tuple[tuple[str, int], ...],
    *others: Any,
) -> Form:
    columns = {
        name: [kind, *(str(dtype) for dtype in some[:1]), *(list(shape) for shape in some[1:])]
        for name, kind, *some in kinds
    }
    return Form(shape, groups, columns, dict(ragged), *others)


def told(row: Row) -> bytes:
    """A row on its way. Raises `FrameError` for a value that cannot be sent."""
    if row.form:
        return Frame([row.form.told, row.ids, row.numbers]).inline()
    return Frame([] if row.ended else [row.value, row.weight]).inline()


def layout_of(seed: int, table: Iterable[bytes]) -> int:
    """A digest of what all who speak and hear compute the same parts from: of a route and two meshes, and of
    the rows that were told."""
    for row in table:
        seed = crc32(row, seed)
    return seed


# Hearing


def rows_in(table: Any, speakers: int) -> list[Row] | None:
    """The rows of all speakers, as they are told. None where it is anything else."""
    if not isinstance(table, list) or len(table) != speakers:
        return None
    rows = [row for row in map(row_in, table) if row is not None]
    known = {(row.form.lengths is None, row.form.homes is None) for row in rows if row.form}
    return rows if len(rows) == speakers and len(known) < 2 else None


def row_in(said: Any) -> Row | None:
    """A row that is told. None where it is anything else."""
    try:
        row = unpack(said) if isinstance(said, bytes) else None
    except FrameError:
        return None
    if not isinstance(row, list):
        return None
    if len(row) == 3:
        return _batch_in(*row)
    if len(row) == 2 and type(row[1]) in (int, float):
        return Row(value=row[0], weight=row[1])
    return None if row else Row()


def _batch_in(said: Any, ids: Any, numbers: Any) -> Row | None:
    form = form_in(said) if isinstance(said, bytes) else None
    if form is None or not isinstance(numbers, list) or len(numbers) < form.least_numbers:
        return None
    if form.shape:
        count = form.count if type(ids) is int and -_WIDE <= ids < _WIDE - form.shape[0] else -1
    else:
        listed = (
            isinstance(ids, Tensor)
            and ids.dtype == torch.int64
            and ids.ndim == 2
            and 0 < ids.shape[1] >= form.groups
        )
        count = len(ids) if listed else -1
    if count < 0 or (numbers and not all(_are_numbers(each, count) for each in numbers)):
        return None
    return Row(form, ids, numbers)


@lru_cache(FORMS)
def form_in(said: bytes) -> Form | None:
    """A form that is told. None where it is anything else."""
    try:
        found = unpack(said)
    except FrameError:
        return None
    match found:
        case [list(shape), int(groups), dict(columns), dict(ragged), lengths, homes, list(mappable)]:
            indices = [*ragged.values(), *(index for index in (lengths, homes) if index is not None)]
            if not all(
                type(number) is int and number >= least
                for least, some in ((1, shape), (0, [groups, *indices]))
                for number in some
            ):
                return None
            if not all(map(_is_kind, columns.values())) or (ragged and ragged.keys() != _ragged_in(columns)):
                return None
            if (
                not all(type(name) is str for name in (*columns, *mappable))
                or prod(shape) > MOST
                or (shape and groups > len(shape))
            ):
                return None
            return Form(tuple(shape), groups, columns, ragged, lengths, homes, tuple(mappable))
    return None


def _ragged_in(columns: Mapping[str, Sequence[Any]]) -> set[str]:
    return {name for name, (kind, *_) in columns.items() if kind == "ragged"}


def _is_kind(said: Any) -> bool:
    match said:
        case ["list" | "device"]:
            return True
        case ["tensor" | "ragged", str(dtype), list(shape)]:
            return _is_dtype(dtype) and all(type(size) is int and size >= 0 for size in shape)
    return False


def _is_dtype(name: str) -> bool:
    try:
        return bool(dtype_of(name))
    except FrameError:
        return False


def _are_numbers(numbers: Any, count: int) -> bool:
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.shape != (count,):
        return False
    return not count or int(numbers.min()) >= 0


def outline_of(rows: Sequence[Row]) -> tuple[Form | None, ...] | None:
    """Tables with the same outline are cut alike, whatever their ids; none where that takes a look at the
    samples."""
    after: int | None = None
    for row in rows:
        if form := row.form:
            if not form.by_number or (after is not None and row.ids < after):
                return None
            after = row.ids + form.shape[0]
    return tuple([row.form for row in rows])


def table_of(rows: Sequence[Row]) -> SampleTable:
    """The table of a batch. A speaker whose stream ended has no samples."""
    forms = [row.form for row in rows if row.form]
    lengths = None if forms[0].lengths is None else tuple([_numbers(row, "lengths") for row in rows])
    homes = None if forms[0].homes is None else tuple([_numbers(row, "homes").tolist() for row in rows])
    return SampleTable(
        tuple([_ids(row) for row in rows]), lengths, homes, max([form.groups for form in forms])
    )


def _ids(row: Row) -> Sequence[Id]:
    if row.form is None:
        return ()
    return Grid(row.ids, row.form.shape) if row.form.shape else tuple(map(tuple, row.ids.tolist()))


def _numbers(row: Row, what: str) -> NDArray[numpy.int64]:
    return row.numbers[getattr(row.form, what)].numpy() if row.form else numpy.empty(0, numpy.int64)


@dataclass(frozen=True)
class Share:
    """What a speaker has of a part."""

    pieces: Sequence[Piece]
    packed: Sequence[Piece]
    """The same rows one after another."""
    count: int


@dataclass(frozen=True)
class Cut:
    """The parts of a table; those of the next one are mostly the same."""

    parts: Sequence[Sequence[Run]]

    @cached_property
    def speakers(self) -> list[tuple[int, ...]]:
        """Per part, who has some of it."""
        return [tuple(sorted({run.producer for run in part})) for part in self.parts]

    @cached_property
    def counts(self) -> list[int]:
        """Per part, its samples."""
        return [sum([run.stop - run.start for run in part]) for part in self.parts]

    @cached_property
    def most(self) -> int:
        """The samples of the largest part."""
        return max(self.counts, default=0)

    @cached_property
    def _shares(self) -> dict[tuple[int, int], Share]:
        return {}

    def share(self, part: int, speaker: int) -> Share:
        """What a speaker has of a part."""
        found = self._shares.get((part, speaker))
        if found is None:
            pieces = pieces_of(self.parts[part], speaker)
            count = sum(piece.stop - piece.start for piece in pieces)
            found = self._shares[part, speaker] = Share(pieces, packed(pieces), count)
        return found


@dataclass(frozen=True)
class Said:
    """What the speakers told of one step's batch, and what follows from it."""

    rows: Sequence[Row]
    cut: Cut
    layout: int
    """The digest that every frame of this step has."""

    @cached_property
    def table(self) -> SampleTable:
        return table_of(self.rows)

    @property
    def parts(self) -> Sequence[Sequence[Run]]:
        return self.cut.parts

    def lengths_of(self, part: int, name: str) -> Tensor:
        """Of a ragged column, in the order of a part; columns that are ragged alike have the same tensor."""
        which = tuple(
            [row.form.ragged[name] if row.form and name in row.form.ragged else -1 for row in self.rows]
        )
        found = self._lengths.get((part, which))
        if found is None:
            nothing = torch.empty(0, dtype=torch.int64)
            each = [
                row.numbers[index] if index >= 0 else nothing
                for row, index in zip(self.rows, which, strict=True)
            ]
            found = self._lengths[part, which] = self._rows_of(part, each)
        return found

    @cached_property
    def _lengths(self) -> dict[tuple[int, tuple[int, ...]], Tensor]:
        return {}

    def ids_of(self, part: int) -> Tensor:
        """int64 `[n, depth]`, in the order of a part."""
        return self._rows_of(part, self._ids)

    @cached_property
    def _ids(self) -> list[Tensor]:
        """Per speaker; `[0]` where it has no samples."""
        found = []
        for ids, row in zip(self.table.ids, self.rows, strict=True):
            found.append(
                ids_of(ids, 0, len(ids)) if isinstance(ids, Grid) else row.ids if len(ids) else torch.empty(0)
            )
        return found

    def _rows_of(self, part: int, tensors: Sequence[Tensor]) -> Tensor:
        """The rows of a part, in its order, of a tensor that each speaker has."""
        runs = self.parts[part]
        if len(runs) <= FEW or len(runs) * ROWS_PER_RUN <= self.cut.counts[part]:
            return torch.cat([tensors[run.producer][run.start : run.stop] for run in runs])
        return torch.cat([tensors[speaker] for speaker in self.cut.speakers[part]])[self._index(part)]

    def _index(self, part: int) -> Tensor:
        """Where the rows of a part lie, if the batches of its speakers lie one after another."""
        found = self._indices.get(part)
        if found is None:
            has = self.cut.speakers[part]
            counts = [len(self.table.ids[speaker]) for speaker in has]
            first = dict(zip(has, accumulate(counts, initial=0), strict=False))
            spans = [
                (first[speaker] + start, first[speaker] + stop) for speaker, start, stop in self.parts[part]
            ]
            found = self._indices[part] = row_index(spans)
        return found

    @cached_property
    def _indices(self) -> dict[int, Tensor]:
        return {}

    def schema_of(self, part: int) -> Mapping[str, Sequence[Any]] | None:
        """The columns that all speakers of a part have, if these are the same, and can all be laid out."""
        schemas = [form.columns for speaker in self.cut.speakers[part] if (form := self.rows[speaker].form)]
        alike = all(schema == schemas[0] for schema in schemas) and all(
            len(said) > 1 for said in schemas[0].values()
        )
        return schemas[0] if alike else None

    def must_copy(self, part: int, schema: Mapping[str, Sequence[Any]], least: int) -> bool:
        """Whether so many bytes of a part's columns have to be copied, as who gets it cannot map them as they
        lie."""
        for name, (kind, dtype, shape) in schema.items():
            row = prod(shape) * dtype_of(dtype).itemsize
            if kind == "tensor" and self._follows(part, name, row):
                continue
            least -= row * (
                int(self.lengths_of(part, name).sum()) if kind == "ragged" else self.cut.counts[part]
            )
            if least <= 0:
                return True
        return False

    def _follows(self, part: int, name: str, row: int) -> bool:
        """Whether what the speakers have of a part's column, in rows of so many bytes, can be mapped one
        after another by who gets it."""
        end = 0
        for speaker in self.cut.speakers[part]:
            form, pieces = self.rows[speaker].form, self.cut.share(part, speaker).pieces
            if form is None or name not in form.mappable or len(pieces) > 1 or pieces[0].at != end:
                return False
            [piece] = pieces
            end += piece.stop - piece.start
            if not is_mappable(
                piece.start * row, (piece.stop - piece.start) * row, last=end == self.cut.counts[part]
            ):
                return False
        return True
