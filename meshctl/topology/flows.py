"""The links of a route where a batch is even: which rank hears whom, and with which samples, as arithmetic.

    speaker i of S holds the samples share(n, S, i)          in sample order, of a batch of n
    a share is cut out of all of them, or for `peer` out of one speaker's
    so a rank hears neighbouring speakers, and a speaker is heard by neighbouring shares

It is what `shares.shares_for` gives for such a batch, without a table of its samples and without a list of
the ranks, so that the answer for one rank of a million costs what it costs for one of eight. Samples that a
`dispatch` balances or sends home are not even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from meshctl.topology.mesh import DeviceMesh, share, share_of
from meshctl.topology.modes import DISPATCH, DispatchMode, Speakers, heard_by, peer_span, voices
from meshctl.topology.strides import join, offset, size_of

SHOWN = 8
"""So many ranks are named."""


@dataclass(frozen=True)
class Ranks:
    """Some ranks of a group: all of them where they are few, else the first ones and the last."""

    count: int
    first: tuple[int, ...]
    """In order; all of them where there are eight or less, else seven."""
    last: int
    stride: int | None = None
    """Between neighbours; none where it is not even, or there are none."""

    @classmethod
    def of(cls, count: int, at: Callable[[int], int], stride: int | None = None) -> Ranks:
        """Of a function that knows the i-th."""
        first = tuple(at(index) for index in range(count if count <= SHOWN else SHOWN - 1))
        last = first[-1] if count <= SHOWN else at(count - 1)
        steps = {other - one for one, other in pairwise(first)} if count <= SHOWN else set()
        return cls(count, first, last, steps.pop() if len(steps) == 1 else stride if count > 1 else None)

    @classmethod
    def run(cls, ranks: range) -> Ranks:
        return cls.of(len(ranks), ranks.__getitem__, ranks.step)

    @classmethod
    def one(cls, rank: int) -> Ranks:
        return cls(1, (rank,), rank)

    @property
    def whole(self) -> bool:
        """Whether all of them are named."""
        return len(self.first) == self.count


def along(mesh: DeviceMesh, dims: tuple[str, ...], rank: int) -> Ranks:
    """The ranks that share all coordinates with one but those of some dims, as `mesh.ranks_along`."""
    layout = mesh.at(rank)[dims].layout
    flat = join(layout.dims)
    even = not layout.table and len(flat) == 1
    return Ranks.of(
        size_of(flat),
        lambda index: layout.at(layout.start + offset(flat, index)),
        flat[0][1] if even else None,
    )


@dataclass(frozen=True)
class Part:
    """Samples that go from one speaker to one share."""

    speaker: int
    """Its number among the speakers."""
    share: int
    samples: range
    """Of the batch; several ranks that have a share get the same."""


@dataclass(frozen=True)
class Links:
    """Both ends of a route, and an even batch of `total` samples on it."""

    giver: DeviceMesh
    taker: DeviceMesh
    total: int
    collect: str = "flatten"
    called: str = "all"
    """`execute` of the stage that gives."""
    mode: str = "slice_dp"
    execute: str = "all"
    """Of the stage that takes."""

    @cached_property
    def voices(self) -> Speakers:
        return voices(self.collect, self.called)

    @cached_property
    def speakers(self) -> int:
        """How many."""
        return self.voices.count(self.giver)

    def rank_of(self, speaker: int) -> int:
        """Of the giving component."""
        return self.voices.rank(self.giver, speaker)

    @cached_property
    def _dispatch(self) -> DispatchMode:
        return DISPATCH[self.mode]

    @cached_property
    def shares(self) -> int:
        """Into how many a batch is cut, where all speakers' samples are cut together."""
        return 1 if self.execute == "first" else self._dispatch.shares(self.taker)

    def held(self, speaker: int) -> range:
        """The samples of a speaker."""
        return share(self.total, self.speakers, speaker)

    # What a rank hears

    def share_of(self, rank: int) -> int:
        return 0 if self.execute == "first" else self._dispatch.share_of(self.taker, rank)

    def hears(self, rank: int) -> range:
        """The speakers, by number, that have samples for a rank."""
        heard = heard_by(self.taker, self.execute, self.speakers, rank)
        if self.execute == "peer" or not heard:
            return heard
        return _touched(share(self.total, self.shares, self.share_of(rank)), self.total, self.speakers)

    def part_of(self, rank: int, speaker: int) -> Part:
        """What a rank gets of a speaker that it hears."""
        mine = self.share_of(rank)
        return Part(speaker, mine, self._cut(speaker, mine))

    def samples_of(self, rank: int) -> int:
        """How many samples a rank gets."""
        heard = self.hears(rank)
        if self.execute != "peer" or len(heard) < 2:
            return len(self.span_of(rank))
        each, more = divmod(self.total, self.speakers)
        return len(heard) * each + len(range(heard.start, min(heard.stop, more), heard.step))

    def span_of(self, rank: int) -> range:
        """All that a rank gets, where it is one run of samples; nothing where `peer` gives it parts of
        several speakers."""
        heard = self.hears(rank)
        if not heard or (self.execute == "peer" and len(heard) > 1):
            return range(0)
        if self.execute == "peer":
            return self._cut(heard[0], self.share_of(rank))
        return share(self.total, self.shares, self.share_of(rank))

    # Who hears a speaker

    def heard_with(self, speaker: int) -> tuple[range, ...]:
        """The shares that get samples of a speaker, in runs."""
        if self.execute == "peer":
            return self._dispatch.among(self.taker, self.hearing(speaker))
        return (_touched(self.held(speaker), self.total, self.shares),)

    def part_for(self, speaker: int, share: int) -> Part:
        return Part(speaker, share, self._cut(speaker, share))

    def ranks_of(self, speaker: int, share: int) -> Ranks:
        """The ranks that get a share of what a speaker gives."""
        if self.execute == "first":
            return Ranks.one(0)
        span = self.hearing(speaker)
        step, shares = self._dispatch.step(self.taker), self._dispatch.shares(self.taker)
        if step is not None:
            return _in_ring(step, shares, share, span)
        if len(span) == self.taker.world_size:
            others = tuple(dim for dim in self.taker.view("data").mesh_dim_names if dim != "data")
            return along(self.taker, others, self._dispatch.holder(self.taker, 0, share))
        ranks = [rank for rank in span if self._dispatch.share_of(self.taker, rank) == share]
        return Ranks.of(len(ranks), ranks.__getitem__)

    def hearing(self, speaker: int) -> range:
        """The ranks that may hear a speaker."""
        if self.execute == "peer":
            return peer_span(self.taker.world_size, speaker, self.speakers)
        return range(1 if self.execute == "first" else self.taker.world_size)

    def _cut(self, speaker: int, mine: int) -> range:
        """The samples of a speaker that are in a share."""
        held = self.held(speaker)
        if self.execute != "peer":
            wanted = share(self.total, self.shares, mine)
            start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
            return range(start, max(start, stop))
        present = self._dispatch.among(self.taker, self.hearing(speaker))
        before = sum(len(run) if run.stop <= mine else max(0, mine - run.start) for run in present)
        part = share(len(held), sum(map(len, present)), before)
        return range(held.start + part.start, held.start + part.stop)


def _touched(samples: range, total: int, parts: int) -> range:
    """Of even parts of a batch, those that have a sample of a run."""
    return (
        range(share_of(total, parts, samples.start), share_of(total, parts, samples.stop - 1) + 1)
        if samples
        else range(0)
    )


def _in_ring(step: int, shares: int, share: int, span: range) -> Ranks:
    """The ranks of a span that get a share, where `step` neighbours get one, the next `step` the next, and so
    on round."""
    period, first = step * shares, share * step

    def below(rank: int) -> int:
        rounds, rest = divmod(rank, period)
        return rounds * step + min(max(rest - first, 0), step)

    def at(number: int) -> int:
        return number // step * period + first + number % step

    start, count = below(span.start), below(span.stop) - below(span.start)
    stride = at(start + 1) - at(start)
    even = step == 1 or count <= step - start % step
    return Ranks.of(count, lambda index: at(start + index), stride if even or shares == 1 else None)
