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
from meshctl.topology.samples import Id, RouteError, Run, align, sample_name

IdsByRank = Mapping[int, Sequence[Id]]


@dataclass(frozen=True)
class Assignment:
    """The samples of one input on each rank of the called component."""

    consumers: ConsumerParts
    step: StepHeader

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """One key per part; equal keys mean equal samples in the same order."""
        return [self.step.key_of(part) for part in range(len(self.step.partition.parts))]

    @cached_property
    def ids(self) -> dict[int, list[Id]]:
        """Rank -> the ids of its samples, in order."""
        ids = [self.step.table.ids_of(part) for part in self.step.partition.parts]
        return {rank: ids[part] for rank, part in self.consumers.part_of.items()}

    def is_like(self, other: Assignment) -> bool:
        """Returns whether every rank has the same samples, in the same order."""
        return self.consumers.ranks == other.consumers.ranks and self.keys == other.keys


def aligned(
    batch: Batch,
    held: Assignment,
    wanted: Assignment,
    rank: int,
    realign: Callable[[Batch, IdsByRank, IdsByRank], Batch],
    *,
    may_have_more: bool = False,
) -> Batch:
    """Returns an input's batch with the samples and the order of the first input.

    Most often each rank already has its samples. Where the two inputs were dispatched differently, such as
    with `balance` or `home`, `realign` moves samples between the ranks. Raises `RouteError` for a sample that
    only one of the inputs has. With `may_have_more`, this input may have further samples, which are left out.
    """
    if held.is_like(wanted):
        return batch
    everybody = {id for ids in wanted.ids.values() for id in ids}
    align(sorted(everybody), held.step.table)  # names a sample that is missing
    extra = {id for ids in held.ids.values() for id in ids} - everybody
    if extra and not may_have_more:
        raise RouteError(f"sample {sample_name(min(extra))} is missing in the first input")
    if all(set(wanted.ids[each]) <= set(held.ids[each]) for each in wanted.ids):
        return ordered(batch, held.ids[rank], wanted.ids[rank])
    return realign(batch, held.ids, wanted.ids)


def realigned(
    batch: Batch,
    held: IdsByRank,
    wanted: IdsByRank,
    rank: int,
    peers: Sequence[int],
    send: Callable[[int, Batch], None],
    receive: Callable[[int], Batch],
) -> Batch:
    """Returns the samples that `rank` has in `wanted`, after an exchange with the ranks `peers`. All of them
    call this function together. `send` and `receive` move a batch to and from one peer."""
    for peer in peers:
        rows = _rows_of(held[rank], wanted[peer])
        if peer != rank and rows:
            send(peer, batch.take(rows))
    needed = set(wanted[rank])
    parts = [batch.take(_rows_of(held[rank], wanted[rank]))]
    parts += [receive(peer) for peer in peers if peer != rank and not needed.isdisjoint(held[peer])]
    whole = Batch.concat(parts)
    return ordered(whole, [tuple(id) for id in whole.ids.tolist()], wanted[rank])


def _rows_of(held: Sequence[Id], wanted: Sequence[Id]) -> list[int]:
    """Returns the indices in `held` of the samples that are in `wanted`."""
    ids = set(wanted)
    return [row for row, id in enumerate(held) if id in ids]


def ordered(batch: Batch, held: Sequence[Id], wanted: Sequence[Id]) -> Batch:
    """Returns the samples `wanted`, in this order, of a batch with the samples `held`."""
    if list(held) == list(wanted):
        return batch
    rows = {id: row for row, id in enumerate(held)}
    return batch.take([rows[id] for id in wanted])


def selected(batch: Batch, wanted: Assignment) -> Batch:
    """Returns the rows of a whole batch that any rank has in `wanted`, in sample order. Raises `RouteError`
    for a sample that the batch does not have."""
    held = [tuple(id) for id in batch.ids.tolist()]
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
