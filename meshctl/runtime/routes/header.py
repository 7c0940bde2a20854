"""The headers that the producers of a route announce in every step, as bytes for all producers and consumers.

    a batch          frame of [schema, ids, numbers]    ids are the first of a grid where that suffices
    a plain value    frame of [value, weight]
    end of stream    .

A schema names the kinds of the columns, and which of the numbers are lengths: all that other producers and
the consumers need to lay the samples out. A header is input: it is checked before anything is computed from
it.

Consumers receive from the leader of their part the table of a step: the headers of all producers, and behind
them the parts, where these depend on the samples themselves, such as balanced ones. Computing those takes
longer than reading them. Parts that follow from the numbers of samples alone are not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import msgpack
import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import MARK, Batch, BatchError, Column, Ragged
from meshctl.runtime.routes.rows import dtype_of, kind_of
from meshctl.runtime.transports.buffers.frames import (
    MAX_DIMS,
    FrameError,
    bytes_of,
    fits,
    not_sent,
    pack,
    unpack,
)
from meshctl.topology.modes import Dispatch
from meshctl.topology.samples import Grid, Id, Run, SampleTable

MIN_MAPPED_BYTES = 1 << 16
"""Smaller columns are copied rather than mapped."""
MAX_SAMPLES = 1 << 31
"""The most samples that one producer may announce."""
MAX_COLUMN_BYTES = 1 << 48
"""The most bytes of one column of a producer, where dims of size 0 count as 1."""
MAX_SUM = 1 << 48
"""The largest sum of one column of numbers, as an upper bound: the largest number, times the count."""
MAX_RUNS_SENT = 1 << 10
"""Parts of more runs in all are not sent."""
_INT64 = 1 << 63
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

    @cached_property
    def encoded(self) -> bytes:
        parts = [list(self.grid), self.group_depth, self.columns, self.ragged, self.tokens, self.homes]
        return bytes_of(pack([*parts, [*self.mappable]]))

    @cached_property
    def count(self) -> int:
        """The number of samples, where their ids are a grid; else 1."""
        return prod(self.grid)

    @cached_property
    def min_numbers(self) -> int:
        """The least number of tensors of numbers in a header with this schema."""
        indices = [*self.ragged.values(), self.tokens, self.homes]
        return 1 + max((index for index in indices if index is not None), default=-1)

    @cached_property
    def uses(self) -> tuple[bool, bool]:
        """Two booleans: the dispatch uses tokens, and it uses homes."""
        return self.tokens is not None, self.homes is not None


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
    def sample_count(self) -> int:
        if self.schema is None:
            return 0
        return self.schema.count if self.schema.grid else len(self.ids)

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
    batch: Batch,
    dispatch: Dispatch,
    *,
    alone: bool,
    is_mappable: Callable[[Tensor], bool] = lambda tensor: False,
) -> ProducerHeader:
    """Returns the header of a batch. Raises `BatchError` for columns that cannot be sent.

    Which columns are mappable is needed only where the producer is not `alone`; tokens and homes only where
    the dispatch uses them.
    """
    numbers = _Numbers()
    columns: dict[str, Sequence[Any]] = {}
    ragged: dict[str, int] = {}
    mappable: list[str] = []
    for name, column in batch.columns.items():
        columns[name] = kind = _kind(name, column)
        if isinstance(column, Ragged) and kind[0] == "ragged":
            ragged[name] = numbers.lengths(column)
        elif isinstance(column, Tensor) and not alone and column.nbytes >= MIN_MAPPED_BYTES:
            mappable += [name] * is_mappable(column)
    tokens = homes = None
    if dispatch.balance:
        named = batch.tokens
        tokens = numbers.add(batch.lengths) if named is None else numbers.lengths(named)
    if dispatch.home:
        homes = numbers.add(batch[MARK + "home." + dispatch.home])
    grid = batch.grid
    shape = () if grid is None else grid.shape
    schema = BatchSchema(shape, batch.group_depth, columns, ragged, tokens, homes, mappable)
    return ProducerHeader(schema, batch.ids if grid is None else grid.start, numbers.found)


class _Numbers:
    """Collects the numbers of a header. Columns that share their offsets share their lengths, too."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self._by_offsets: dict[int, int] = {}

    def add(self, numbers: Tensor) -> int:
        self.found.append(numbers)
        return len(self.found) - 1

    def lengths(self, column: Ragged) -> int:
        """Adds the lengths of a column, unless a column with the same offsets has added them. Returns their
        index in `found`."""
        index = self._by_offsets.get(id(column.offsets))
        if index is None:
            index = self._by_offsets[id(column.offsets)] = self.add(column.lengths)
        return index


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
    if header.schema is not None:
        return bytes_of(pack([header.schema.encoded, header.ids, header.numbers]))
    return _END if header.is_end else bytes_of(pack([header.value, header.weight]))


def digest_of(seed: int, table: Iterable[bytes]) -> int:
    """Returns a digest of everything from which all ranks compute the same parts: `seed` stands for the route
    and its two meshes."""
    return crc32(b"".join(table), seed)


# Decoding


def is_consistent(headers: Sequence[ProducerHeader]) -> bool:
    """Returns whether either all or none of the batches have tokens, and likewise homes."""
    return len({schema.uses for header in headers if (schema := header.schema) is not None}) < 2


def decode(row: Any) -> ProducerHeader | None:
    """Returns the header that is encoded in `row`, or None if that is not a valid header."""
    if row == _END:
        return ProducerHeader()
    if not isinstance(row, bytes):
        return None
    try:
        found = unpack(row)
    except FrameError:
        return None
    match found:
        case [bytes(encoded), ids, list(numbers)]:
            return _decoded_batch(encoded, ids, numbers)
        case [value, weight] if type(weight) in (int, float):
            return ProducerHeader(value=value, weight=weight)
    return None


def _decoded_batch(encoded: bytes, ids: Any, numbers: list[Any]) -> ProducerHeader | None:
    schema = decode_schema(encoded)
    if schema is None or len(numbers) < schema.min_numbers:
        return None
    count = _count(schema, ids)
    if count is None or not all(_are_numbers(each, count) for each in numbers):
        return None
    return ProducerHeader(schema, ids, numbers)


def _count(schema: BatchSchema, ids: Any) -> int | None:
    """Returns the number of samples, or None if the ids do not fit the schema."""
    if schema.grid:
        fits_int64 = type(ids) is int and -_INT64 <= ids < _INT64 - schema.grid[0]
        return schema.count if fits_int64 else None
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 2:
        return None
    return len(ids) if ids.shape[1] and ids.shape[1] >= schema.group_depth else None


def _are_numbers(numbers: Any, count: int) -> bool:
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.shape != (count,):
        return False
    return not count or (int(numbers.min()) >= 0 and int(numbers.max()) * count <= MAX_SUM)


@lru_cache(64)
def decode_schema(encoded: bytes) -> BatchSchema | None:
    """Returns the decoded schema, or None if the bytes are not a valid schema."""
    try:
        found = unpack(encoded)
    except FrameError:
        return None
    match found:
        case [list(grid), int(groups), dict(columns), dict(ragged), tokens, homes, list(mappable)]:
            schema = BatchSchema(tuple(grid), groups, columns, ragged, tokens, homes, tuple(mappable))
            return schema if _is_valid(schema) else None
    return None


def _is_valid(schema: BatchSchema) -> bool:
    indices = [*schema.ragged.values(), *(i for i in (schema.tokens, schema.homes) if i is not None)]
    if not all(type(number) is int and number >= 0 for number in [schema.group_depth, *indices]):
        return False
    if not all(type(size) is int and size >= 1 for size in schema.grid):
        return False
    if prod(schema.grid) > MAX_SAMPLES or (schema.grid and schema.group_depth > len(schema.grid)):
        return False
    if not all(type(name) is str for name in (*schema.columns, *schema.mappable)):
        return False
    if not all(_is_kind(kind, schema.count) for kind in schema.columns.values()):
        return False
    ragged = {name for name, (kind, *_) in schema.columns.items() if kind == "ragged"}
    return not schema.ragged or schema.ragged.keys() == ragged


def _is_kind(kind: Any, count: int) -> bool:
    match kind:
        case ["list" | "device"]:
            return True
        case ["tensor" | "ragged", str(dtype), list(shape)]:
            if len(shape) >= MAX_DIMS or not all(type(size) is int and size >= 0 for size in shape):
                return False
            itemsize = _itemsize(dtype)
            return itemsize > 0 and count * itemsize * prod(size or 1 for size in shape) <= MAX_COLUMN_BYTES
    return False


def _itemsize(name: str) -> int:
    """Returns the bytes of an element of a dtype; 0 for an unknown dtype."""
    try:
        return dtype_of(name).itemsize
    except FrameError:
        return 0


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


# The table of a step


def are_few(parts: Sequence[Sequence[Run]]) -> bool:
    """Returns whether parts are few enough to be sent."""
    return sum(map(len, parts)) <= MAX_RUNS_SENT


def encode_parts(parts: Sequence[Sequence[Run]]) -> bytes:
    encoded: bytes = msgpack.packb(parts)
    return encoded


def decode_table(
    table: Any, producers: int, parts: int
) -> tuple[Sequence[ProducerHeader], Sequence[Sequence[Run]] | None] | None:
    """Returns the headers of all producers, and the runs of each part where the parts are sent. Returns None
    for any other table."""
    if not isinstance(table, list) or not producers <= len(table) <= producers + 1:
        return None
    headers = [header for row in table[:producers] if (header := decode(row)) is not None]
    if len(headers) != producers or not is_consistent(headers):
        return None
    if len(table) == producers:
        return headers, None
    found = _decode_parts(table[producers], [header.sample_count for header in headers])
    return (headers, found) if found is not None and len(found) == parts else None


def _decode_parts(row: Any, counts: Sequence[int]) -> list[list[Run]] | None:
    """Returns the runs of each part, or None if the bytes are anything else. `counts` are the producers'
    numbers of samples."""
    try:
        parts = msgpack.unpackb(row)
    except (TypeError, ValueError, msgpack.UnpackException):
        return None
    if not isinstance(parts, list):
        return None
    for part in parts:
        if not isinstance(part, list) or not all(_is_run(run, counts) for run in part):
            return None
    return [[Run(*run) for run in part] for part in parts]


def _is_run(run: Any, counts: Sequence[int]) -> bool:
    match run:
        case [int(producer), int(start), int(stop)]:
            return 0 <= producer < len(counts) and 0 <= start < stop <= counts[producer]
    return False
