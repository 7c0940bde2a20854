"""Computes the parts of a batch: the ranks of the called component that receive each part, and its producers.

Ranks that receive the same samples share one part. `consumer_parts` returns the ranks and possible producers
of each part, which are the same in every step; `parts_for` returns the samples of each part in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, DispatchMode, ExecuteMode, producers_of, workers_of
from meshctl.topology.samples import RouteError, Run, SampleTable, in_sample_order, merge_runs


@dataclass(frozen=True)
class ConsumerParts:
    """The facts about the parts of a route that are the same in every step."""

    ranks: tuple[tuple[int, ...], ...]
    """Per part, the ranks of the called component that receive it."""
    producers: tuple[range, ...]
    """Per part, the indices of the producers whose samples it may hold."""

    @cached_property
    def part_of(self) -> Mapping[int, int]:
        """Rank -> its part. Ranks that are not called are absent."""
        return {rank: part for part, ranks in enumerate(self.ranks) for rank in ranks}

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """Per part, the producer that sends the headers of all producers to the part's consumers. Parts with
        the same producers are divided evenly among these."""
        parts_with: dict[range, list[int]] = {}
        for part, producers in enumerate(self.producers):
            parts_with.setdefault(producers, []).append(part)
        leader = {
            part: producers[index * len(producers) // len(parts)]
            for producers, parts in parts_with.items()
            for index, part in enumerate(parts)
        }
        return tuple(leader[part] for part in range(len(self.ranks)))


@cache
def consumer_parts(
    mesh: DeviceMesh, execute: ExecuteMode, mode: DispatchMode, producers: int
) -> ConsumerParts:
    """Returns the called ranks of a component, grouped into parts: the ranks of a part have the same
    producers and receive the same share of their samples."""
    found: dict[tuple[int, range], list[int]] = {}
    for rank in execute.workers.ranks(mesh):
        share = 0 if execute.is_single else mode.share_of(mesh, rank)
        found.setdefault((share, producers_of(mesh, execute, producers, rank)), []).append(rank)
    ordered = sorted(found, key=lambda key: (key[0], key[1].start))
    return ConsumerParts(tuple(tuple(found[key]) for key in ordered), tuple(range for _, range in ordered))


def parts_for(
    execute: ExecuteMode, mode: DispatchMode, options: Dispatch, mesh: DeviceMesh, table: SampleTable
) -> Sequence[Sequence[Run]]:
    """The samples of each part of `consumer_parts`, in sample order."""
    if execute.is_single:
        return [table.in_order]
    if execute.is_per_producer:
        consumers = consumer_parts(mesh, execute, mode, len(table.ids))
        found: list[list[Run]] = [[] for _ in consumers.ranks]
        for producer in range(len(table.ids)):
            ranks = workers_of(mesh, execute, producer, len(table.ids))
            alone = replace(table, ids=tuple(ids if i == producer else () for i, ids in enumerate(table.ids)))
            present = [share for run in mode.shares_of(mesh, ranks) for share in run]
            shares = _partitioned(mode, alone, len(present), options)
            for part in sorted({consumers.part_of[rank] for rank in ranks}):
                found[part] += shares[present.index(mode.share_of(mesh, consumers.ranks[part][0]))]
        return [in_sample_order(part, table) for part in found]
    return _partitioned(mode, table, mode.share_count(mesh), options)


def _partitioned(
    mode: DispatchMode, table: SampleTable, parts: int, options: Dispatch
) -> Sequence[Sequence[Run]]:
    """Returns the shares of `mode.partition` after checking them, because the function may be user-defined.
    Raises `RouteError` for shares that the table does not have."""
    shares = mode.partition(table, parts, options)
    if len(shares) != parts:
        raise RouteError(
            f"the dispatch mode `{options.mode}` returned {len(shares)} shares instead of {parts}"
        )
    if not mode.is_even:
        for producer, start, stop in (run for share in shares for run in share):
            if not (0 <= producer < len(table.ids) and 0 <= start < stop <= len(table.ids[producer])):
                wrong = f"samples {start} to {stop} of producer {producer}"
                raise RouteError(f"the dispatch mode `{options.mode}` returned {wrong}, which do not exist")
        if not options.allow_empty and not all(shares):
            raise RouteError(
                f"the dispatch mode `{options.mode}` left a share of {table.total} samples empty"
            )
    return shares


def parts_of_some(
    execute: ExecuteMode,
    mode: DispatchMode,
    options: Dispatch,
    mesh: DeviceMesh,
    table: SampleTable,
    some: Sequence[Run],
) -> list[list[Run]]:
    """The parts of some samples of a table. They are divided as if the table had only these samples. The runs
    refer to the whole table."""
    rows: list[list[int]] = [[] for _ in table.ids]
    for producer, start, stop in some:
        rows[producer] += range(start, stop)
    smaller = replace(
        table,
        ids=_rows_of(table.ids, rows),
        lengths=None if table.lengths is None else _rows_of(table.lengths, rows),
        homes=None if table.homes is None else _rows_of(table.homes, rows),
    )
    parts = [_rows_in(part) for part in parts_for(execute, mode, options, mesh, smaller)]
    return [merge_runs([(producer, rows[producer][row]) for producer, row in part]) for part in parts]


def parts_within(parts: Sequence[Sequence[Run]], some: Sequence[Run]) -> list[list[Run]]:
    """The parts, with only those of their samples that are in `some`."""
    chosen = set(_rows_in(some))
    return [merge_runs([row for row in _rows_in(part) if row in chosen]) for part in parts]


def _rows_in(runs: Sequence[Run]) -> list[tuple[int, int]]:
    return [(producer, row) for producer, start, stop in runs for row in range(start, stop)]


def _rows_of(columns: Sequence[Sequence[Any]], rows: Sequence[Sequence[int]]) -> tuple[list[Any], ...]:
    return tuple([column[row] for row in some] for column, some in zip(columns, rows, strict=True))


def samples_by_rank(
    execute: ExecuteMode, mode: DispatchMode, options: Dispatch, mesh: DeviceMesh, table: SampleTable
) -> dict[int, list[tuple[int, int]]]:
    """Rank of the called component -> the (producer, index) of its samples, in sample order. Ranks that are
    not called are absent."""
    consumers = consumer_parts(mesh, execute, mode, len(table.ids))
    parts = [_rows_in(part) for part in parts_for(execute, mode, options, mesh, table)]
    return {rank: parts[part] for rank, part in sorted(consumers.part_of.items())}
