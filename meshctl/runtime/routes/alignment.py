"""Puts samples in order: those of several producers, and those of the inputs of one call, whose first batch
determines the order of samples and the samples of each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.step import StepHeader
from meshctl.topology.consumers import ConsumerParts
from meshctl.topology.samples import Id, RouteError, Run, sample_name

IdsByRank = Mapping[int, Sequence[Id]]


@dataclass(frozen=True)
class Assignment:
    """The samples of one input on each rank of the called component."""

    consumers: ConsumerParts
    step: StepHeader

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """One key per part; equal keys mean equal samples in the same order."""
        return [*map(self.step.table.key_of, self.step.partition.parts)]

    @cached_property
    def ids(self) -> dict[int, list[Id]]:
        """Rank -> the ids of its samples, in order."""
        ids = [self.step.table.ids_of(part) for part in self.step.partition.parts]
        return {rank: ids[part] for rank, part in self.consumers.part_of.items()}


def rows_of(held: Sequence[Id], wanted: Sequence[Id]) -> list[int]:
    """Returns the indices in `held` of the samples that are in `wanted`."""
    ids = set(wanted)
    return [row for row, id in enumerate(held) if id in ids]


def ids_in(batch: Batch) -> list[Id]:
    return [tuple(id) for id in batch.ids.tolist()]


def ordered(batch: Batch, held: Sequence[Id], wanted: Sequence[Id]) -> Batch:
    """Returns the samples `wanted`, in this order, of a batch with the samples `held`."""
    if list(held) == list(wanted):
        return batch
    rows = {id: row for row, id in enumerate(held)}
    return batch.take([rows[id] for id in wanted])


def selected(batch: Batch, wanted: Assignment) -> Batch:
    """Returns the rows of a whole batch that any rank has in `wanted`, in sample order. Raises `RouteError`
    for a sample that the batch does not have."""
    held = ids_in(batch)
    ids = sorted({id for some in wanted.ids.values() for id in some})
    if missing := set(ids).difference(held):
        raise RouteError(f"sample {sample_name(min(missing))} is missing in the second input")
    whole = ordered(batch, held, ids)
    whole.most = len(ids)
    return whole


def assembled(
    runs: Sequence[Run], batches: Mapping[int, Batch], cat: Callable[[list[Tensor]], Tensor]
) -> Batch:
    """Returns the batches of the producers as one, in sample order, which is that of `runs`. `cat`
    concatenates tensors."""
    if len(batches) == 1 and len(runs) < 2:
        [only] = batches.values()
        return only
    filled = [number for number in sorted(batches) if len(batches[number])]
    some = filled or sorted(batches)[:1]
    whole = Batch.concat([batches[number] for number in some] or [Batch({})], cat)
    starts, at = {}, 0
    for number in filled:
        starts[number], at = at, at + len(batches[number])
    rows = list[int]()
    for run in runs:
        rows += range(starts[run.producer], starts[run.producer] + len(run))
        starts[run.producer] += len(run)
    return whole if rows == list(range(len(rows))) else whole.take(rows)
