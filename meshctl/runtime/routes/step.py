"""One step of a route, as every rank of both sides computes it from the headers of all producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.batch.ids import ids_of
from meshctl.runtime.routes.header import ProducerHeader, table_of
from meshctl.runtime.routes.rows import RowRange, ranges_of, row_index, without_rows
from meshctl.runtime.user_modes import dispatch_mode, execute_mode
from meshctl.topology.consumers import parts_for
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from meshctl.topology.samples import Grid, RouteError, Run, SampleTable


@dataclass(frozen=True)
class Partition:
    """The samples of a step, divided into parts. Consumers that receive the same samples share a part.

    What follows from the parts is computed when it is first needed, and kept.
    """

    parts: Sequence[Sequence[Run]]
    _held: dict[tuple[int, int], list[RowRange]] = field(default_factory=dict)

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

    def held(self, part: int, producer: int) -> list[RowRange]:
        """Returns the rows of a part that a producer holds: where they are in its batch and in the part."""
        found = self._held.get((part, producer))
        if found is None:
            found = self._held[part, producer] = ranges_of(self.parts[part], producer)
        return found


@dataclass(eq=False)
class StepHeader:
    """The headers of all producers in one step, with the layout of the samples that follows from them."""

    headers: Sequence[ProducerHeader]
    partition: Partition
    digest: int
    """The digest that every frame of this step names."""
    _lengths: dict[tuple[int, tuple[int | None, ...]], Tensor] = field(default_factory=dict)
    _indices: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def table(self) -> SampleTable:
        return table_of(self.headers)

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
        tables = zip(self.table.ids, self.headers, strict=True)
        return [ids_of(ids) if isinstance(ids, Grid) else header.ids for ids, header in tables]

    def _rows_of(self, part: int, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the rows of a part, in its order, of a tensor that each producer has."""
        whole = torch.cat([tensors[producer] for producer in self.partition.producers[part]])
        return whole[self._index(part)]

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


def partition_of(
    route: Route, mesh: DeviceMesh, execute: str, headers: Sequence[ProducerHeader]
) -> Partition | None:
    """Returns the parts of a step with a batch, or None if all producers sent plain values or ended. `mesh`
    and `execute` are those of the consumer. All ranks of both sides find the same parts."""
    if all(header.schema is None for header in headers):
        return None
    if any(header.schema is None and not header.is_end for header in headers):
        raise RouteError(f"`{route.source}` returned a Batch on some of its ranks, but not on all")
    dispatch = dispatch_mode(route.dispatch.mode)
    try:
        parts = parts_for(execute_mode(execute), dispatch, route.dispatch, mesh, table_of(headers))
    except RouteError as error:
        raise RouteError(f"`{route.source}` produces for stage `{route.target}` {error}") from None
    return Partition(parts)
