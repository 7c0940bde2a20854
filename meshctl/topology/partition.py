"""Which samples go where: from the `Table` of what each speaker of a route holds, the parts that its hearers
get.

Speakers and hearers compute the same parts alone, so nobody coordinates. What lies together moves together:
parts are lists of `Run`s, and ids that are numbered evenly are a `Grid` that nothing lists, so that an even
batch costs the same whatever its number of samples.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, overload

from meshctl.topology.mesh import DeviceMesh, share
from meshctl.topology.modes import DISPATCH, Dispatch, DispatchMode, Id, RouteError, heard_by, peer_span


class Run(NamedTuple):
    """Neighbours in one speaker's batch."""

    speaker: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Grid(Sequence[Id]):
    """Ids that count through a box, the last number fastest: (17, 0) (17, 1) (18, 0) (18, 1) is `Grid(17, (2,
    2))`."""

    start: int
    """The first number of the first id; its others are 0."""
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return prod(self.shape)

    @property
    def first(self) -> Id:
        return self.start, *(0 for _ in self.shape[1:])

    @property
    def last(self) -> Id:
        return self.start + self.shape[0] - 1, *(size - 1 for size in self.shape[1:])

    @overload
    def __getitem__(self, index: int) -> Id: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Id, ...]: ...
    def __getitem__(self, index: int | slice) -> Id | tuple[Id, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        rest, digits = index % len(self), list[int]()
        for size in reversed(self.shape):
            rest, digit = divmod(rest, size)
            digits.append(digit)
        digits[-1] += self.start
        return tuple(reversed(digits))


@dataclass(frozen=True)
class Table:
    """What the speakers of a route hold in one step: the only thing that their hearers must be told."""

    ids: tuple[Sequence[Id], ...]
    """Per speaker, the ids of its samples, in the order of its batch."""
    lengths: tuple[Sequence[int], ...] | None = None
    """Per speaker, the tokens of each sample; only where the dispatch balances."""
    homes: tuple[Sequence[int], ...] | None = None
    """Per speaker, the data rank that each sample goes home to; only where the dispatch says `home`."""
    group_depth: int = 0
    """How many leading numbers of an id are its `group_id`; 0 where samples belong to no group."""

    @property
    def total(self) -> int:
        return sum(map(len, self.ids))

    @cached_property
    def in_order(self) -> tuple[Run, ...]:
        """All samples, in sample order."""
        if self._even:
            return tuple(Run(speaker, 0, len(ids)) for speaker, ids in enumerate(self.ids) if len(ids))
        return tuple(runs(order(self)))

    @cached_property
    def _even(self) -> bool:
        """Whether the speakers hold grids, each after the one before."""
        there = [ids for ids in self.ids if len(ids)]
        grids = [ids for ids in there if isinstance(ids, Grid)]
        return len(grids) == len(there) and all(one.last < other.first for one, other in pairwise(grids))

    def ids_of(self, part: Sequence[Run]) -> list[Id]:
        """The ids of a part, in its order."""
        return [self.ids[run.speaker][index] for run in part for index in range(run.start, run.stop)]

    def key_of(self, part: Sequence[Run]) -> tuple[object, ...]:
        """Parts with the same key have the same ids; it lists them only where they are not numbered evenly."""
        inner: set[tuple[int, ...]] = set()
        spans: list[tuple[int, int]] = []
        for run in part:
            ids = self.ids[run.speaker]
            if not isinstance(ids, Grid):
                return tuple(self.ids_of(part))
            first = ids.start * prod(ids.shape[1:])
            inner.add(ids.shape[1:])
            if spans and spans[-1][1] == first + run.start:
                spans[-1] = spans[-1][0], first + run.stop
            else:
                spans.append((first + run.start, first + run.stop))
        return (tuple(inner), *spans) if len(inner) < 2 else tuple(self.ids_of(part))


def order(table: Table) -> list[tuple[int, int]]:
    """(speaker, index in its batch) of every sample, in sample order."""
    flat = [(id, speaker, index) for speaker, ids in enumerate(table.ids) for index, id in enumerate(ids)]
    if any(flat[i][0] >= flat[i + 1][0] for i in range(len(flat) - 1)):
        flat.sort()
    return _each_once(flat)


def _each_once(found: Sequence[tuple[Id, int, int]]) -> list[tuple[int, int]]:
    """(speaker, index) of samples that are sorted by their ids."""
    for before, after in pairwise(found):
        if before[0] == after[0]:
            raise RouteError(f"sample {name_of(after[0])} is there twice")
    return [(speaker, index) for _, speaker, index in found]


def runs(samples: Sequence[tuple[int, int]]) -> list[Run]:
    """(speaker, index) of samples, neighbours joined."""
    joined: list[Run] = []
    for speaker, index in samples:
        if joined and joined[-1].speaker == speaker and joined[-1].stop == index:
            joined[-1] = Run(speaker, joined[-1].start, index + 1)
        else:
            joined.append(Run(speaker, index, index + 1))
    return joined


def name_of(id: Id) -> str:
    """17.3 for (17, 3)."""
    return ".".join(map(str, id))


# Cutting


def cut(table: Table, parts: int, dispatch: Dispatch) -> list[list[Run]]:
    """What each of `parts` shares holds, in sample order.

    Even and contiguous unless the dispatch says `balance` or `home`; samples of one group stay together
    unless it says `split_groups`. Raises `RouteError` where a share would be empty and may not.
    """
    placed, depth = table.in_order, 0 if dispatch.split_groups else table.group_depth
    alike = (dispatch.home and table.homes) or (dispatch.balance and table.lengths)
    size = 0 if alike else _unit(table, depth)
    if size:
        count = sum(map(len, placed)) // size
        spans = [share(count, parts, part) for part in range(parts)]
        shares = [_picked(placed, [(span.start * size, span.stop * size)]) for span in spans]
    else:
        bounds = _bounds(table, placed, depth)
        count = len(bounds) - 1
        shares = [_picked(placed, positions) for positions in _dealt(table, placed, bounds, parts, dispatch)]
    if not dispatch.allow_empty and (empty := sum(not part for part in shares)):
        what = "groups" if count < table.total else "samples"
        least = "say dispatch: {allow_empty: true}, or give at least " + str(parts)
        raise RouteError(f"{count} {what} for {parts} shares: {empty} of them would be empty; {least}")
    return shares


def _unit(table: Table, depth: int) -> int:
    """The number of samples in each group where all groups are of one size; 1 without groups, 0 where sizes
    differ."""
    if not depth:
        return 1
    sizes = {prod(ids.shape[depth:]) if isinstance(ids, Grid) else 0 for ids in table.ids if len(ids)}
    return sizes.pop() if len(sizes) == 1 else 0 if sizes else 1


def _bounds(table: Table, placed: Sequence[Run], depth: int) -> Sequence[int]:
    """Where what may not be parted begins, in sample order, and the end: single samples, or those of one
    group, which lie together."""
    count = sum(map(len, placed))
    if not depth:
        return range(count + 1)
    bounds: list[int] = []
    last: Id | None = None
    for position, id in enumerate(table.ids_of(placed)):
        if id[:depth] != last:
            bounds.append(position)
        last = id[:depth]
    return [*bounds, count]


def _flat(placed: Sequence[Run], numbers: Sequence[Sequence[int]]) -> list[int]:
    """Numbers that each speaker has of its samples, in sample order."""
    found: list[int] = []
    for speaker, start, stop in placed:
        found += numbers[speaker][start:stop]
    return found


def _dealt(
    table: Table, placed: Sequence[Run], bounds: Sequence[int], parts: int, dispatch: Dispatch
) -> list[list[tuple[int, int]]]:
    """What each share gets: from one position in sample order to another, rising."""
    if dispatch.home and table.homes:
        shares: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        for position, home in enumerate(_flat(placed, table.homes)):
            if not 0 <= home < parts:
                [id] = table.ids_of(_picked(placed, [(position, position + 1)]))
                raise RouteError(f"sample {name_of(id)} has no home among {parts} shares")
            shares[home].append((position, position + 1))
        return shares
    count = len(bounds) - 1
    if dispatch.balance and table.lengths:
        weights = _flat(placed, table.lengths)
        if count < len(weights):
            weights = [sum(weights[start:stop]) for start, stop in pairwise(bounds)]
        return [_joined(units, bounds) for units in _balanced(weights, parts, dispatch.equal_counts)]
    spans = [share(count, parts, part) for part in range(parts)]
    return [[(bounds[span.start], bounds[span.stop])] for span in spans]


def _balanced(weights: Sequence[int], parts: int, equal_counts: bool) -> list[list[int]]:
    """Longest first, each to the least loaded share that has room: within a few per mille of even for real
    lengths."""
    least, more = divmod(len(weights), parts) if equal_counts else (len(weights), 0)
    loads = [(0, 0, part) for part in range(parts)]
    held: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        load, count, part = loads[0]
        while count >= least + (more > 0):  # full, and it stays so: `more` only falls
            heapq.heappop(loads)
            load, count, part = loads[0]
        more -= count == least
        held[part].append(index)
        heapq.heapreplace(loads, (load + weights[index], count + 1, part))
    return held


def _joined(units: list[int], bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Of some units, neighbours as one."""
    found: list[tuple[int, int]] = []
    first = last = -1
    for unit in sorted(units):
        if unit != last:
            if last >= 0:
                found.append((bounds[first], bounds[last]))
            first = unit
        last = unit + 1
    return [*found, (bounds[first], bounds[last])] if units else found


def _picked(placed: Sequence[Run], positions: Iterable[tuple[int, int]]) -> list[Run]:
    """The samples from one position in sample order to another, of positions that rise."""
    found: list[Run] = []
    number = at = 0
    for start, stop in positions:
        while start < stop:
            speaker, first, last = placed[number]
            if start >= at + last - first:
                at, number = at + last - first, number + 1
                continue
            begin, end = first + start - at, min(last, first + stop - at)
            if found and found[-1].speaker == speaker and found[-1].stop == begin:
                found[-1] = Run(speaker, found[-1].start, end)
            else:
                found.append(Run(speaker, begin, end))
            start += end - begin
    return found


# Who gets which part


@dataclass(frozen=True)
class Hearing:
    """The parts of a route as far as they do not depend on the samples: who gets which, and which speakers
    may have some of it."""

    ranks: tuple[tuple[int, ...], ...]
    """Per part, the ranks of the called component that get it."""
    speakers: tuple[range, ...]
    """Per part, the speakers whose samples it may hold, by number."""

    @cached_property
    def part_of(self) -> Mapping[int, int]:
        """Rank -> its part; ranks that are not called have none."""
        return {rank: part for part, ranks in enumerate(self.ranks) for rank in ranks}

    @cached_property
    def tellers(self) -> tuple[int, ...]:
        """Per part, the speaker that tells the table to those who get it; parts are spread over the speakers
        as samples are."""
        alike: dict[range, list[int]] = {}
        for part, heard in enumerate(self.speakers):
            alike.setdefault(heard, []).append(part)
        told = {
            part: heard[number * len(heard) // len(parts)]
            for heard, parts in alike.items()
            for number, part in enumerate(parts)
        }
        return tuple(told[part] for part in range(len(self.ranks)))


@cache
def hearing(mesh: DeviceMesh, execute: str, mode: str, speakers: int) -> Hearing:
    """Of the ranks of a called component, each where it hears the same speakers and gets the same share of
    their samples."""
    found: dict[tuple[range, int], list[int]] = {}
    for rank in range(1 if execute == "first" else mesh.world_size):
        heard = heard_by(mesh, execute, speakers, rank)
        found.setdefault(
            (heard, 0 if execute == "first" else DISPATCH[mode].share_of(mesh, rank)), []
        ).append(rank)
    ordered = sorted(found, key=lambda key: (key[1], key[0].start))
    return Hearing(tuple(tuple(found[key]) for key in ordered), tuple(heard for heard, _ in ordered))


def parts_for(execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: Table) -> list[list[Run]]:
    """The samples of each part of `hearing`, in sample order."""
    if execute == "first":
        return [list(table.in_order)]
    if execute == "peer":
        return _peer_parts(DISPATCH[dispatch.mode], dispatch, mesh, table)
    return cut(table, DISPATCH[dispatch.mode].shares(mesh), dispatch)


def _peer_parts(mode: DispatchMode, dispatch: Dispatch, mesh: DeviceMesh, table: Table) -> list[list[Run]]:
    """Each producer's samples, dispatched over the workers that are its own."""
    heard = hearing(mesh, "peer", dispatch.mode, len(table.ids))
    found: list[list[Run]] = [[] for _ in heard.ranks]
    for speaker in range(len(table.ids)):
        span = peer_span(mesh.world_size, speaker, len(table.ids))
        alone = Table(
            tuple(ids if i == speaker else () for i, ids in enumerate(table.ids)),
            table.lengths,
            table.homes,
            table.group_depth,
        )
        present = [share for run in mode.among(mesh, span) for share in run]
        shares = cut(alone, len(present), dispatch)
        for part in sorted({heard.part_of[rank] for rank in span}):
            found[part] += shares[present.index(mode.share_of(mesh, heard.ranks[part][0]))]
    return [_sorted(part, table) for part in found]


def _sorted(part: list[Run], table: Table) -> list[Run]:
    if len({run.speaker for run in part}) < 2:
        return part
    found = sorted(
        (table.ids[run.speaker][index], run.speaker, index)
        for run in part
        for index in range(run.start, run.stop)
    )
    return runs(_each_once(found))


def shares_for(
    execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: Table
) -> dict[int, list[tuple[int, int]]]:
    """Rank of the called component -> the (speaker, index) of its samples, in sample order. Ranks that hear
    nothing are absent."""
    heard = hearing(mesh, execute, dispatch.mode, len(table.ids))
    parts = [
        [(run.speaker, at) for run in part for at in range(run.start, run.stop)]
        for part in parts_for(execute, dispatch, mesh, table)
    ]
    return {rank: parts[part] for rank, part in sorted(heard.part_of.items())}


def align(wanted: Sequence[Id], table: Table) -> list[tuple[int, int]]:
    """Where each wanted sample of another input lies. Raises `RouteError` for an id that one has and the
    other has not."""
    where = {id: (speaker, index) for speaker, ids in enumerate(table.ids) for index, id in enumerate(ids)}
    try:
        return [where[id] for id in wanted]
    except KeyError as missing:
        raise RouteError(f"sample {name_of(missing.args[0])} is missing") from None
