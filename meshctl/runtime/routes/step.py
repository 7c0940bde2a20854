"""One step of a route, as every rank of both sides computes it from the headers of all producers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from operator import add, le
from struct import Struct
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Column, unchecked
from meshctl.runtime.batch.ids import ids_of
from meshctl.runtime.routes.flat_frame import FlatPart
from meshctl.runtime.routes.header import (
    MAX_ID,
    PartitionKey,
    PlainColumn,
    ProducerHeader,
    even_format,
    partition_key,
    table_of,
)
from meshctl.runtime.routes.rows import RowRange, packed, ranges_of, row_index, without_rows
from meshctl.runtime.routes.table import are_few
from meshctl.runtime.transports.buffers import mapped_concat
from meshctl.runtime.user_modes import dispatch_mode, execute_mode
from meshctl.topology.consumers import parts_for
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from meshctl.topology.samples import Grid, RouteError, Run, SampleTable

MAX_RUNS_SLICED = 4
"""A part of at most this number of runs is sliced run by run. Other parts are gathered by an index, unless
their runs are long."""
MIN_ROWS_PER_RUN = 16
"""Runs that have at least this number of rows on average are sliced, however many there are."""
FLAT_MAX_BYTES = 1 << 20
"""Parts of this size or larger are not sent in flat frames, unless their producers write into one frame."""
FLAT_MAX_RUNS = 256
"""The most runs of a flat part. Rows of more runs are gathered by an index."""


@dataclass(frozen=True)
class HeldRows:
    """The rows of one part that one producer holds."""

    ranges: Sequence[RowRange]
    """The rows in the producer's batch, and where they go in the part."""
    packed: Sequence[RowRange]
    """The same rows, and where they go in a frame of this producer's rows alone: one after another from 0."""
    count: int


class SentPart(NamedTuple):
    """A part for which one producer sends something."""

    part: int
    is_leader: bool
    """True if the producer sends the headers to the part's consumers."""
    has_rows: bool
    """True if the producer holds rows of the part."""


@dataclass(frozen=True)
class Partition:
    """The samples of a step, divided into parts. Consumers that receive the same samples share a part.

    Most steps are partitioned as the step before, and then have the same object. What follows from the parts
    is computed when it is first needed, and kept: the mappings are caches, which `StepHeader` fills too.
    """

    parts: Sequence[Sequence[Run]]
    is_sent: bool = False
    """True if consumers receive the parts behind the headers."""
    layouts: dict[int, FlatPart] = field(default_factory=dict)
    """Part -> its layout, for the parts of tensors that were asked for."""
    flat_columns: dict[int, Sequence[PlainColumn]] = field(default_factory=dict)
    """Part -> the columns of a flat frame, for the parts that were asked for; none if it is not flat."""
    sent: dict[int, list[SentPart]] = field(default_factory=dict)
    """Producer -> the result of `StepHeader.sent_by`, for the producers that were asked for."""
    _held: dict[tuple[int, int], HeldRows] = field(default_factory=dict)

    @cached_property
    def producers(self) -> list[tuple[int, ...]]:
        """Part -> the producers that hold some of it."""
        return [tuple(sorted({run.producer for run in part})) for part in self.parts]

    @cached_property
    def counts(self) -> list[int]:
        """Part -> its number of samples."""
        return [sum([len(run) for run in part]) for part in self.parts]

    @cached_property
    def largest(self) -> int:
        """The number of samples in the largest part."""
        return max(self.counts, default=0)

    def held(self, part: int, producer: int) -> HeldRows:
        """Returns the rows of a part that a producer holds."""
        found = self._held.get((part, producer))
        if found is None:
            ranges = ranges_of(self.parts[part], producer)
            found = self._held[part, producer] = HeldRows(ranges, packed(ranges), sum(map(len, ranges)))
        return found


@dataclass(eq=False)
class StepHeader:
    """The headers of all producers in one step, with the layout of the samples that follows from them."""

    headers: Sequence[ProducerHeader]
    partition: Partition
    digest: int
    """The digest that every frame of this step names."""

    @cached_property
    def _layouts(self) -> dict[int, FlatPart]:
        """The layouts of parts with ragged columns, which differ from those of other steps."""
        return {}

    @cached_property
    def _lengths(self) -> dict[tuple[int, tuple[int | None, ...]], Tensor]:
        return {}

    @cached_property
    def _indices(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def table(self) -> SampleTable:
        return table_of(self.headers)

    def key_of(self, part: int) -> tuple[object, ...]:
        """Returns a key of the samples of a part, in their order."""
        return self.table.key_of(self.partition.parts[part])

    def sent_by(self, producer: int, led: Sequence[int]) -> list[SentPart]:
        """Returns what a producer sends: something for the parts in `led`, to whose consumers it sends the
        headers, and then for other parts of which it holds rows, whose frames other producers may lay out."""
        found = self.partition.sent.get(producer)
        if found is None:
            producers = self.partition.producers
            found = [SentPart(part, True, producer in producers[part]) for part in led]
            for part, others in enumerate(producers):
                if producer in others and part not in led:
                    found.append(SentPart(part, False, True))
            self.partition.sent[producer] = found
        return found

    def flat_part(self, part: int) -> FlatPart | None:
        """Returns the layout of a part that is not large, and None for other parts (`layout_of`)."""
        layout = self.layout_of(part)
        return layout if layout and layout.nbytes < FLAT_MAX_BYTES else None

    def layout_of(self, part: int) -> FlatPart | None:
        """Returns the layout of a part whose producers have the same plain columns and evenly numbered ids of
        one depth; None for other parts, and where the consumers may map a column."""
        found = self.partition.layouts.get(part)
        if found is None and (columns := self._flat_columns(part)):
            indices = {column.lengths for column in columns if column.lengths is not None}
            kept = self._layouts if indices else self.partition.layouts
            found = kept.get(part)
            if found is None:
                found = kept[part] = self._find_layout(part, columns, indices)
        return found

    def _find_layout(self, part: int, columns: Sequence[PlainColumn], indices: Collection[int]) -> FlatPart:
        runs = self.partition.parts[part]
        rows = [0, *accumulate([run.stop - run.start for run in runs])]
        edges: dict[int | None, Sequence[int]] = {None: rows}
        offsets: dict[int, Tensor] = {}
        for index in indices:
            each = {one: self.headers[one].numbers[index].numpy() for one in self.partition.producers[part]}
            lengths = [each[producer][start:stop] for producer, start, stop in runs]
            ends = numpy.empty(rows[-1] + 1, numpy.int64)
            ends[0] = 0
            numpy.cumsum(lengths[0] if len(lengths) == 1 else numpy.concatenate(lengths), out=ends[1:])
            edges[index], offsets[index] = ends[rows].tolist(), torch.from_numpy(ends)
        return FlatPart(columns, runs, edges, offsets=offsets)

    def _flat_columns(self, part: int) -> Sequence[PlainColumn]:
        found = self.partition.flat_columns.get(part)
        if found is None:
            found = self.partition.flat_columns[part] = self._find_flat_columns(part)
        return found

    def _find_flat_columns(self, part: int) -> Sequence[PlainColumn]:
        producers, count = self.partition.producers[part], self.partition.counts[part]
        if not producers or len(self.partition.parts[part]) > FLAT_MAX_RUNS:
            return ()
        schemas = [self.headers[producer].schema for producer in producers]
        first = schemas[0]
        if first is None or not first.grid or not first.plain_columns:
            return ()
        alike = first.plain_columns, first.group_depth, first.grid[1:]  # the first size counts the samples
        for schema in schemas:
            if not schema or not schema.grid:
                return ()
            if (schema.plain_columns, schema.group_depth, schema.grid[1:]) != alike:
                return ()
        for column in first.plain_columns:
            if column.name in first.mappable and column.row_bytes * count >= mapped_concat.MIN_BYTES:
                return ()
        return first.plain_columns

    def schema_of(self, part: int) -> Mapping[str, Sequence[Any]] | None:
        """Returns the columns of a part that has samples, where all of its producers have the same ones and
        each column is a tensor or a ragged tensor in host memory."""
        producers = self.partition.producers[part]
        schemas = [schema.columns for producer in producers if (schema := self.headers[producer].schema)]
        first = schemas[0]
        if any(each != first for each in schemas):
            return None
        has_layouts = all(len(kind) > 1 for kind in first.values())  # only tensors state a dtype and a shape
        return first if has_layouts else None

    def lengths_of(self, part: int, name: str) -> Tensor:
        """Returns the lengths of a ragged column, in the order of a part. Columns that share their lengths
        have the same tensor."""
        indices = tuple(
            [header.schema.ragged.get(name) if header.schema else None for header in self.headers]
        )
        found = self._lengths.get((part, indices))
        if found is None:
            empty = torch.empty(0, dtype=torch.int64)
            each = [
                empty if index is None else header.numbers[index]
                for header, index in zip(self.headers, indices, strict=True)
            ]
            found = self._lengths[part, indices] = self._rows_of(part, each)
        return found

    def compact_ids_of(self, part: int) -> Tensor | Grid:
        """Returns the ids of a part: as a grid, without a tensor, where they are consecutive sample
        numbers."""
        spans: list[tuple[int, int]] = []
        after = None
        for producer, start, stop in self.partition.parts[part]:
            header = self.headers[producer]
            if header.schema is None or len(header.schema.grid) != 1:
                return self.ids_of(part)
            begin = header.ids + start
            if begin == after:
                begin, _ = spans.pop()
            after = header.ids + stop
            spans.append((begin, after))
        if len(spans) == 1:
            return Grid(spans[0][0], (spans[0][1] - spans[0][0],))
        numbers = [numpy.arange(first, after) for first, after in spans]
        return torch.from_numpy(numpy.concatenate(numbers)[:, None])

    def batch_of(self, part: int, columns: dict[str, Column]) -> Batch:
        """Returns the batch of a part from its columns, which have the lengths of the partition."""
        schema = self.headers[self.partition.producers[part][0]].schema
        depth = schema.group_depth if schema else 0
        return unchecked(columns, self.partition.counts[part], self.compact_ids_of(part), depth)

    def empty_batch(self) -> Batch:
        """Returns a batch without samples, with the columns of the others."""
        schema, ids = next((header.schema, header.ids) for header in self.headers if header.schema)
        depth = len(schema.grid) or ids.shape[1]
        none = torch.empty((0, depth), dtype=torch.int64)
        return Batch(without_rows(schema.columns), ids=none, group_depth=schema.group_depth)

    def ids_of(self, part: int) -> Tensor:
        """Returns the ids of a part, int64 `[n, depth]`."""
        return self._rows_of(part, self._ids)

    @cached_property
    def _ids(self) -> list[Tensor]:
        """Producer -> the ids of its samples."""
        found = []
        for ids, header in zip(self.table.ids, self.headers, strict=True):
            if isinstance(ids, Grid):
                found.append(ids_of(ids, 0, len(ids)))
            else:
                found.append(header.ids if len(ids) else torch.empty(0))
        return found

    def _rows_of(self, part: int, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the rows of a part, in its order, of a tensor that each producer has."""
        runs = self.partition.parts[part]
        if len(runs) <= MAX_RUNS_SLICED or len(runs) * MIN_ROWS_PER_RUN <= self.partition.counts[part]:
            return torch.cat([tensors[run.producer][run.start : run.stop] for run in runs])
        return torch.cat([tensors[producer] for producer in self.partition.producers[part]])[
            self._index(part)
        ]

    def _index(self, part: int) -> Tensor:
        """Returns the rows of a part in the concatenated batches of its producers."""
        found = self._indices.get(part)
        if found is None:
            producers = self.partition.producers[part]
            counts = [len(self.table.ids[producer]) for producer in producers]
            first = dict(zip(producers, accumulate(counts, initial=0), strict=False))  # the total is dropped
            runs = self.partition.parts[part]
            spans = [(first[producer] + start, first[producer] + stop) for producer, start, stop in runs]
            found = self._indices[part] = row_index(spans)
        return found


class Partitions:
    """The partitions of a route, step by step. All ranks of both sides find the same ones. Most steps are
    partitioned as the step before. If their headers differ only in ids, they are not decoded again."""

    def __init__(self, route: Route, mesh: DeviceMesh, execute: str) -> None:
        """`mesh` and `execute` are those of the consumer."""
        self._route, self._mesh, self._execute = route, mesh, execute_mode(execute)
        self._dispatch = dispatch_mode(route.dispatch.mode)
        self._last: tuple[PartitionKey, Partition] | None = None
        """The last partition that may be used again, with its key."""
        self._known: _KnownTable | None = None

    def known(self, table: Any) -> tuple[Sequence[ProducerHeader], Partition] | None:
        """Returns the headers and the partition of a step whose table differs from an earlier one only in
        ids; None for any other table."""
        known = self._known
        if known is None or (headers := known.headers(table)) is None:
            return None
        return headers, known.partition

    def of(self, headers: Sequence[ProducerHeader], table: Sequence[bytes]) -> Partition | None:
        """Returns the parts of a step with a batch, or None if all producers sent plain values or ended.
        `table` has the headers as bytes."""
        is_even = self._dispatch.is_even  # a user's mode may read the ids
        key = partition_key(headers) if is_even else None
        if self._last is not None and key == self._last[0]:
            if table and all(header.schema is not None and header.schema.is_even for header in headers):
                self._known = _KnownTable(table, headers, self._last[1])
            return self._last[1]
        if all(header.schema is None for header in headers):
            return None
        source, target = self._route.source, self._route.target
        if any(header.schema is None and not header.is_end for header in headers):
            raise RouteError(f"`{source}` returned a Batch on some of its ranks, but not on all")
        modes = self._execute, self._dispatch, self._route.dispatch
        try:
            parts = parts_for(*modes, self._mesh, table_of(headers))
        except RouteError as error:
            raise RouteError(f"`{source}` produces for stage `{target}` {error}") from None
        if key is None:
            return Partition(parts, is_sent=is_even and are_few(parts))
        self._last = key, Partition(parts)
        return self._last[1]


class _KnownTable:
    """A table in which all headers need only their first ids, with the partition that follows."""

    def __init__(
        self, table: Sequence[bytes], headers: Sequence[ProducerHeader], partition: Partition
    ) -> None:
        """`headers` are those of `table`, and all of their schemas `is_even`."""
        self.partition = partition
        self._rows = Struct("<" + "".join(map(even_format, table)))
        self._schemas = [header.schema for header in headers]
        self._counts = [schema.grid[0] for schema in self._schemas if schema]
        found = self._rows.unpack(b"".join(table))
        self._kinds, self._encoded = found[::3], found[2::3]

    def headers(self, table: Any) -> list[ProducerHeader] | None:
        """Returns the headers of a table that differs only in ids, if its samples are divided in the same
        way; None for any other table."""
        try:
            rows = b"".join(table)
        except TypeError:
            return None
        if len(rows) != self._rows.size:
            return None
        found = self._rows.unpack(rows)
        firsts = found[1::3]
        if found[2::3] != self._encoded or found[::3] != self._kinds:
            return None
        if not all(map(le, map(add, firsts, self._counts), (*firsts[1:], MAX_ID))):
            return None
        return [*map(ProducerHeader, self._schemas, firsts)]
