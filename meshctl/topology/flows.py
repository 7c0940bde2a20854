"""The data flow of a route for an even batch: which rank receives which samples from which producer.

Of an even batch of n samples, producer i of P holds the samples even_split(n, P, i), in sample order. Shares
are even splits of the whole batch or, where `execute` is per producer, of each producer's samples. So a rank
receives samples from neighbouring producers, and a producer sends samples to neighbouring shares. A batch is
not even where the dispatch has `balance` or `home`, or a user's mode partitions it.

The results are those of `consumers.samples_by_rank`, computed without a table of samples and without a list
of ranks: one rank of a million costs what one rank of eight costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

from meshctl.dataclass import dataclass
from meshctl.topology.mesh import DeviceMesh, even_split, split_index
from meshctl.topology.modes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    CollectMode,
    DispatchMode,
    ExecuteMode,
    RankSet,
    producer_set,
    producers_of,
    workers_of,
)
from meshctl.topology.strides import join, offset, size_of

MAX_LISTED = 8
"""The largest number of ranks that are listed one by one."""


@dataclass(frozen=True)
class Ranks:
    """Some ranks of a group: all of them where they are few, otherwise the first ones and the last."""

    count: int
    first: tuple[int, ...]
    """All ranks where there are at most `MAX_LISTED`, otherwise the first `MAX_LISTED - 1` of them."""
    last: int
    stride: int | None = None
    """The difference of neighbouring ranks; None if it varies, or where there is one rank."""

    @classmethod
    def of(cls, count: int, at: Callable[[int], int], stride: int | None = None) -> Ranks:
        """Returns `count` ranks; `at` returns the rank at an index. The stride is derived where all ranks are
        listed, otherwise it is `stride`."""
        is_listed = count <= MAX_LISTED
        first = tuple(at(index) for index in range(count if is_listed else MAX_LISTED - 1))
        last = first[-1] if is_listed else at(count - 1)
        steps = {other - one for one, other in pairwise(first)} if is_listed else set()
        if len(steps) == 1:
            stride = steps.pop()
        return cls(count, first, last, stride if count > 1 else None)

    @classmethod
    def run(cls, ranks: range) -> Ranks:
        return cls.of(len(ranks), ranks.__getitem__, ranks.step)

    @classmethod
    def one(cls, rank: int) -> Ranks:
        return cls(1, (rank,), rank)

    @property
    def is_whole(self) -> bool:
        """True if `first` lists all ranks."""
        return len(self.first) == self.count


def along(mesh: DeviceMesh, dims: tuple[str, ...], rank: int) -> Ranks:
    """The ranks of `mesh.ranks_along(dims, rank)`: those whose coordinate differs from that of `rank` only in
    `dims`."""
    layout = mesh.at(rank)[dims].layout
    flat = join(layout.dims)
    is_even = not layout.table and len(flat) == 1
    return Ranks.of(
        size_of(flat),
        lambda index: layout.at(layout.start + offset(flat, index)),
        flat[0][1] if is_even else None,
    )


@dataclass(frozen=True)
class EvenFlow:
    """The meshes and modes of both ends of a route, and an even batch of `total` samples on it."""

    source: DeviceMesh
    """The mesh of the producing component."""
    target: DeviceMesh
    """The mesh of the consuming component."""
    total: int
    collect: CollectMode = COLLECT["flatten"]
    called: ExecuteMode = EXECUTE["all"]
    """`execute` of the producing stage."""
    mode: DispatchMode = DISPATCH["slice_dp"]
    execute: ExecuteMode = EXECUTE["all"]
    """`execute` of the consuming stage."""

    @cached_property
    def producer_set(self) -> RankSet:
        return producer_set(self.collect, self.called)

    @cached_property
    def producers(self) -> int:
        """The number of producers."""
        return self.producer_set.count(self.source)

    def producer_rank(self, producer: int) -> int:
        """The rank of a producer in the producing component."""
        return self.producer_set.rank_at(self.source, producer)

    @cached_property
    def shares(self) -> int:
        """The number of shares of a batch whose samples are partitioned together."""
        return 1 if self.execute.is_single else self.mode.share_count(self.target)

    def held(self, producer: int) -> range:
        """The samples of a producer."""
        return even_split(self.total, self.producers, producer)

    # A consumer's side

    def share_of(self, rank: int) -> int:
        return 0 if self.execute.is_single else self.mode.share_of(self.target, rank)

    def producers_of(self, rank: int) -> range:
        """The indices of the producers that have samples for a rank."""
        possible = producers_of(self.target, self.execute, self.producers, rank)
        if self.execute.is_per_producer or not possible:
            return possible
        return _touched(even_split(self.total, self.shares, self.share_of(rank)), self.total, self.producers)

    def samples_of(self, rank: int) -> int:
        """The number of samples that a rank receives."""
        producers = self.producers_of(rank)
        if not self.execute.is_per_producer or len(producers) < 2:
            return len(self.span_of(rank))
        each, more = divmod(self.total, self.producers)
        return len(producers) * each + len(range(producers.start, min(producers.stop, more), producers.step))

    def span_of(self, rank: int) -> range:
        """The samples of a rank as positions in the batch. Empty if they are not contiguous, because the
        rank receives a part of each of several producers' samples."""
        producers = self.producers_of(rank)
        if not producers or (self.execute.is_per_producer and len(producers) > 1):
            return range(0)
        if self.execute.is_per_producer:
            return self.samples(producers[0], self.share_of(rank))
        return even_split(self.total, self.shares, self.share_of(rank))

    # A producer's side

    def shares_of(self, producer: int) -> tuple[range, ...]:
        """The shares that hold samples of a producer, as ranges of share numbers."""
        if self.execute.is_per_producer:
            return self.mode.shares_of(self.target, self.workers_of(producer))
        return (_touched(self.held(producer), self.total, self.shares),)

    def ranks_of(self, producer: int, share: int) -> Ranks:
        """The ranks that receive a share of a producer's samples."""
        workers = self.workers_of(producer)
        if self.execute.is_single:
            return Ranks.run(workers)
        step, shares = self.mode.ranks_per_share(self.target), self.mode.share_count(self.target)
        if step is not None:
            return _periodic(step, shares, share, workers)
        if len(workers) == self.target.world_size:
            others = tuple(dim for dim in self.target.view("data").mesh_dim_names if dim != "data")
            return along(self.target, others, self.mode.counterpart(self.target, 0, share))
        ranks = [rank for rank in workers if self.mode.share_of(self.target, rank) == share]
        return Ranks.of(len(ranks), ranks.__getitem__)

    def workers_of(self, producer: int) -> range:
        """The ranks that may receive samples of a producer."""
        return workers_of(self.target, self.execute, producer, self.producers)

    def samples(self, producer: int, share: int) -> range:
        """The samples that move from a producer to all ranks of a share, as positions in the batch."""
        held = self.held(producer)
        if not self.execute.is_per_producer:
            wanted = even_split(self.total, self.shares, share)
            start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
            return range(start, max(start, stop))
        present = self.mode.shares_of(self.target, self.workers_of(producer))
        before = sum(len(run) if run.stop <= share else max(0, share - run.start) for run in present)
        part = even_split(len(held), sum(map(len, present)), before)
        return range(held.start + part.start, held.start + part.stop)


def _touched(samples: range, total: int, parts: int) -> range:
    """The parts of an even split of `total` samples that contain any of the given `samples`."""
    if not samples:
        return range(0)
    first, last = split_index(total, parts, samples.start), split_index(total, parts, samples.stop - 1)
    return range(first, last + 1)


def _periodic(step: int, shares: int, share: int, span: range) -> Ranks:
    """The ranks of a span that receive a share, where the first `step` ranks receive share 0, the next `step`
    ranks share 1, and so on; after the last share the ranks continue with share 0."""
    period, first = step * shares, share * step

    def below(rank: int) -> int:
        rounds, rest = divmod(rank, period)
        return rounds * step + min(max(rest - first, 0), step)

    def at(number: int) -> int:
        return number // step * period + first + number % step

    start, count = below(span.start), below(span.stop) - below(span.start)
    stride = at(start + 1) - at(start)
    is_even = step == 1 or count <= step - start % step
    return Ranks.of(count, lambda index: at(start + index), stride if is_even or shares == 1 else None)
