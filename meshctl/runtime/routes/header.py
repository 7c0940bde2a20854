"""The headers that the producers of a route announce in every step, as bytes for all producers and consumers.

    a batch          frame of [schema, ids, numbers]    ids are the first of a grid where that suffices
    a plain value    frame of [value, weight]
    end of stream    .

A schema names the kinds of the columns, and which of the numbers are lengths: all that other producers and
the consumers need to lay the samples out.

Consumers receive from the leader of their part the table of a step: the headers of all producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy
from numpy.typing import NDArray
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import MARK, Batch, BatchError, Column, Ragged
from meshctl.runtime.routes.rows import kind_of
from meshctl.runtime.transports.buffers.frames import fits, not_sent, pack, unpack
from meshctl.topology.modes import Dispatch
from meshctl.topology.samples import Grid, Id, SampleTable

MIN_MAPPED_BYTES = 1 << 16
"""Smaller columns are copied rather than mapped."""
_END = b"."


@dataclass(frozen=True)
class BatchSchema:
    """The part of a batch's header that is mostly the same in the producer's next step."""

    grid: tuple[int, ...]
    """The shape of the grid of its ids; empty if they are listed."""
    group_depth: int
    """The number of leading numbers of an id that identify its group."""
    columns: Mapping[str, Sequence[Any]]
    """Column -> kind, name of the dtype, shape of a row."""
    ragged: Mapping[str, int]
    """Ragged column -> index of its lengths among the header's numbers."""
    tokens: int | None
    """The index of the samples' token counts among the numbers; None if the dispatch does not balance."""
    homes: int | None
    """The index, among the numbers, of the data ranks to which samples return; None if they do not."""
    mappable: Sequence[str] = ()
    """Columns in memory that a consumer can map next to those of other producers."""


class ProducerHeader(NamedTuple):
    """The header of one producer in one step: of a batch where it has a schema, of a plain value where it has
    a weight, and of an ended stream where it has neither."""

    schema: BatchSchema | None = None
    ids: Any = None
    """The first number of the grid's first id, or int64 `[n, depth]`."""
    numbers: Sequence[Tensor] = ()
    """int64 `[n]` each: lengths, token counts or homes. The schema has their indices."""
    value: Any = None
    weight: float | None = None

    @property
    def is_end(self) -> bool:
        return self.schema is None and self.weight is None

    @property
    def tokens(self) -> NDArray[numpy.int64]:
        """The tokens of each sample, where the dispatch balances."""
        return self._numbers_at(self.schema and self.schema.tokens)

    @property
    def homes(self) -> list[int]:
        """The data rank to which each sample returns."""
        homes: list[int] = self._numbers_at(self.schema and self.schema.homes).tolist()
        return homes

    def _numbers_at(self, index: BatchSchema | int | None) -> NDArray[numpy.int64]:
        return self.numbers[index].numpy() if isinstance(index, int) else numpy.empty(0, numpy.int64)


# Describing a batch


def describe(
    batch: Batch, dispatch: Dispatch, is_mappable: Callable[[Tensor], bool] = lambda tensor: False
) -> ProducerHeader:
    """Returns the header of a batch. Raises `BatchError` for columns that cannot be sent.

    It has tokens and homes only where the dispatch uses them. `is_mappable` is needed where there are several
    producers.
    """
    numbers, known = list[Tensor](), dict[int, int]()

    def lengths(column: Ragged) -> int:
        """Returns the index of the lengths of a column. Columns that share their offsets share it, too."""
        if id(column.offsets) not in known:
            known[id(column.offsets)] = len(numbers)
            numbers.append(column.lengths)
        return known[id(column.offsets)]

    columns: dict[str, Sequence[Any]] = {}
    ragged: dict[str, int] = {}
    mappable: list[str] = []
    for name, column in batch.columns.items():
        columns[name] = kind = _kind(name, column)
        if isinstance(column, Ragged) and kind[0] == "ragged":
            ragged[name] = lengths(column)
        elif isinstance(column, Tensor) and column.nbytes >= MIN_MAPPED_BYTES:
            mappable += [name] * is_mappable(column)
    tokens = homes = None
    if dispatch.balance:
        tokens = len(numbers) if batch.tokens is None else lengths(batch.tokens)
        numbers += [batch.lengths] if batch.tokens is None else []
    if dispatch.home:
        homes = len(numbers)
        numbers.append(batch[MARK + "home." + dispatch.home])
    grid = batch.grid
    shape = () if grid is None else grid.shape
    schema = BatchSchema(shape, batch.group_depth, columns, ragged, tokens, homes, mappable)
    return ProducerHeader(schema, batch.ids if grid is None else grid.start, numbers)


def _kind(name: str, column: Column) -> list[Any]:
    """Returns the kind of a column, and for a tensor that can be laid out its dtype and the shape of a row.
    Raises `BatchError` for a column that cannot be sent: rows are copied by address later, without another
    check."""
    kind = kind_of(column)
    if isinstance(column, list):
        return [kind]
    values = column.values if isinstance(column, Ragged) else column
    if why := not_sent(values) or (values.is_meta and "a tensor on meta has no values"):
        raise BatchError(f"column {name!r}: {why}")
    if isinstance(column, Ragged) and not fits(values, column.offsets):
        raise BatchError(f"column {name!r} is ragged, and its offsets do not fit its values")
    return [kind] if kind == "device" else [kind, str(values.dtype), list(values.shape[1:])]


# Encoding


def encode(header: ProducerHeader) -> bytes:
    """Returns a header as bytes. Raises `FrameError` for a value that cannot be sent."""
    if (schema := header.schema) is not None:
        kinds = [schema.columns, schema.ragged, schema.tokens, schema.homes, [*schema.mappable]]
        return pack([[[*schema.grid], schema.group_depth, *kinds], header.ids, header.numbers])
    return _END if header.is_end else pack([header.value, header.weight])


def digest_of(seed: int, table: Iterable[bytes]) -> int:
    """Returns a digest of everything from which all ranks compute the same parts: `seed` stands for the route
    and its two meshes."""
    return crc32(b"".join(table), seed)


# Decoding


def decode(row: bytes) -> ProducerHeader:
    """Returns the header that is encoded in a row of a table."""
    if row == _END:
        return ProducerHeader()
    first, *rest = unpack(row)
    if len(rest) > 1:
        grid, *kinds = first
        return ProducerHeader(BatchSchema(tuple(grid), *kinds), *rest)
    return ProducerHeader(value=first, weight=rest[0])


# What follows from all headers


def is_cut_by_counts(headers: Sequence[ProducerHeader]) -> bool:
    """Returns whether the partition follows from the numbers of samples alone, which is then cheap to find:
    ids are numbered evenly, from one producer to the next, and neither tokens nor homes are used."""
    next_id: int | None = None
    for header in headers:
        if schema := header.schema:
            is_even = schema.grid and schema.tokens is None and schema.homes is None
            if not is_even or (next_id is not None and header.ids < next_id):
                return False
            next_id = header.ids + schema.grid[0]
        elif not header.is_end:
            return False
    return True


def table_of(headers: Sequence[ProducerHeader]) -> SampleTable:
    """Returns the samples of all producers. A producer whose stream has ended has none."""
    schemas = [header.schema for header in headers if header.schema]
    tokens = homes = None
    if schemas[0].tokens is not None:
        tokens = tuple([header.tokens for header in headers])
    if schemas[0].homes is not None:
        homes = tuple([header.homes for header in headers])
    group_depth = max([schema.group_depth for schema in schemas])
    return SampleTable(tuple([_ids(header) for header in headers]), tokens, homes, group_depth)


def _ids(header: ProducerHeader) -> Sequence[Id]:
    if header.schema is None:
        return ()
    if header.schema.grid:
        return Grid(header.ids, header.schema.grid)
    return tuple(map(tuple, header.ids.tolist()))
