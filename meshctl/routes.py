"""Who speaks, who hears, which samples: dispatch, execute and collect as functions of two meshes and the counts.

    producers' mesh --collect--> one batch in sample order --dispatch--> shares --execute--> consumers' mesh

A `Route` is what the plan stores: from a stage's value to a parameter of the stage that takes it. Its `Link`s are derived,
by every rank alone and with the same result, from the route, the two meshes and the `Table` of what each speaker holds.

Sample order is the order of ids. A sample's id is a tuple of numbers: 17, and (17, 3) for the fourth sample made from it.
A new mode is one entry in `DISPATCH` or `COLLECT`, with its half for meshes and its half for batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from meshctl.mesh import DeviceMesh, share

Id = tuple[int, ...]
Join = Literal["samples", "mean", "sum", "first", "list"]


class RouteError(ValueError):
    """Samples that cannot be shared out as the recipe says; the message names numbers, the caller adds route and step."""


# Dispatch: who hears, and how a batch splits


@dataclass(frozen=True)
class Dispatch:
    """How an input reaches the ranks of the called component."""

    mode: str = "slice_dp"
    balance: Literal["", "tokens"] = ""
    """Even out token counts instead of sample counts."""
    home: str = ""
    """Send each sample to the data rank that made it in this earlier stage."""
    allow_empty: bool = False
    """Fewer samples than shares: empty batches instead of an error."""
    split_groups: bool = False
    """Shares may part samples of one `group_id`."""


@dataclass(frozen=True)
class DispatchMode:
    shares: Callable[[DeviceMesh], int]
    """How many different shares there are."""
    share_of: Callable[[DeviceMesh, int], int]
    """Which of them a rank gets."""
    holder: Callable[[DeviceMesh, int, int], int]
    """Of the ranks that get a share, the one that stands to it as a given rank stands to its own: (mesh, rank, share) -> rank."""


def _data_peer(mesh: DeviceMesh, rank: int, data_rank: int) -> int:
    """The rank of another data rank with the same coordinates otherwise."""
    flat = mesh.dim_rank(rank, "dp") * mesh.size("fsdp") + mesh.dim_rank(rank, "fsdp")
    dp, fsdp = divmod(data_rank * mesh.ulysses_size + flat % mesh.ulysses_size, mesh.size("fsdp"))
    return mesh.rank({**mesh.coordinate(rank), "dp": dp, "fsdp": fsdp})


DISPATCH: Mapping[str, DispatchMode] = {
    "slice_dp": DispatchMode(lambda mesh: mesh.data_size, lambda mesh, rank: mesh.data_rank(rank), _data_peer),
    "slice": DispatchMode(lambda mesh: mesh.world_size, lambda mesh, rank: rank, lambda mesh, rank, share: share),
    "all": DispatchMode(lambda mesh: 1, lambda mesh, rank: 0, lambda mesh, rank, share: rank),
}
EXECUTE = ("all", "first", "peer")


# Collect: who speaks, and how the parts join


@dataclass(frozen=True)
class CollectMode:
    speakers: Callable[[DeviceMesh], tuple[int, ...]]
    """The ranks whose values count, in the order in which they join."""
    join: Join
    """`samples`: one batch in sample order; `mean`, `sum`: numbers, by data rank; `first`: the only value; `list`: all of them."""


def _last_stage(mesh: DeviceMesh) -> tuple[int, ...]:
    last = mesh.size("pp") - 1
    return tuple(rank for rank in range(mesh.world_size) if mesh.dim_rank(rank, "pp") == last)


COLLECT: Mapping[str, CollectMode] = {
    "flatten": CollectMode(DeviceMesh.collect_ranks, "samples"),
    "mean": CollectMode(DeviceMesh.collect_ranks, "mean"),
    "sum": CollectMode(DeviceMesh.collect_ranks, "sum"),
    "first": CollectMode(lambda mesh: (mesh.representative(0),), "first"),
    "last_pp_first": CollectMode(lambda mesh: _last_stage(mesh)[:1], "first"),
    "none": CollectMode(lambda mesh: tuple(range(mesh.world_size)), "list"),
    "last_pp": CollectMode(_last_stage, "list"),
}


def speakers(mesh: DeviceMesh, collect: str, execute: str = "all") -> tuple[int, ...]:
    """The ranks that give a stage's value; with `execute: first` only worker 0 has one."""
    return (0,) if execute == "first" else COLLECT[collect].speakers(mesh)


def peer_span(workers: int, producer: int, producers: int) -> range:
    """`execute: peer`: the workers that belong to a producer: its even share of them, or number `producer mod workers`."""
    if workers >= producers:
        return share(workers, producers, producer)
    return range(producer % workers, producer % workers + 1)


# Routes


@dataclass(frozen=True)
class Route:
    """From a stage's value to a parameter of the stage that takes it; a weight route goes from a sync stage to itself."""

    name: str
    """`SOURCE -> TARGET`, with `.PARAMETER` where the target has several inputs."""
    source: str
    """The stage that gives."""
    target: str
    """The stage that takes."""
    parameter: str = ""
    """Of the called method; empty for the only, or joined, input."""
    kind: Literal["data", "weights"] = "data"
    collect: str = "flatten"
    dispatch: Dispatch = Dispatch()
    slots: int = 2
    """How many values may be on their way per link before a send waits."""


@dataclass(frozen=True)
class Table:
    """What the speakers of a route hold in one step: the only thing that their hearers must be told."""

    ids: tuple[tuple[Id, ...], ...]
    """Per speaker, the ids of its samples, in the order of its batch."""
    lengths: tuple[tuple[int, ...], ...] | None = None
    """Per speaker, the tokens of each sample; only where the dispatch balances."""
    homes: tuple[tuple[int, ...], ...] | None = None
    """Per speaker, the data rank that each sample goes home to; only where the dispatch says `home`."""
    group_depth: int = 0
    """How many leading numbers of an id are its `group_id`; 0 where samples belong to no group."""

    @property
    def total(self) -> int:
        return sum(map(len, self.ids))


def order(table: Table) -> list[tuple[int, int]]:
    """(speaker, index in its batch) of every sample, in sample order."""
    flat = [(id, speaker, index) for speaker, ids in enumerate(table.ids) for index, id in enumerate(ids)]
    if any(flat[i][0] >= flat[i + 1][0] for i in range(len(flat) - 1)):
        flat.sort()
        for before, after in pairwise(flat):
            if before[0] == after[0]:
                raise RouteError(f"sample {name_of(after[0])} is there twice")
    return [(speaker, index) for _, speaker, index in flat]


def name_of(id: Id) -> str:
    """17.3 for (17, 3)."""
    return ".".join(map(str, id))


def cut(table: Table, placed: Sequence[tuple[int, int]], parts: int, dispatch: Dispatch) -> list[list[int]]:
    """The positions in sample order that each of `parts` shares holds.

    Even and contiguous unless the dispatch says `balance` or `home`; samples of one group stay together unless it says
    `split_groups`. Raises `RouteError` where a share would be empty and may not.
    """
    units = _units(table, placed, dispatch)
    if dispatch.home and table.homes:
        shares: list[list[int]] = [[] for _ in range(parts)]
        for position, (speaker, index) in enumerate(placed):
            home = table.homes[speaker][index]
            if not 0 <= home < parts:
                raise RouteError(f"sample {name_of(table.ids[speaker][index])} has no home among {parts} shares")
            shares[home].append(position)
    elif dispatch.balance and table.lengths:
        weights = [sum(table.lengths[placed[p][0]][placed[p][1]] for p in unit) for unit in units]
        shares = _balanced(units, weights, parts)
    else:
        shares = [[p for unit in units[slice(*_ends(share(len(units), parts, part)))] for p in unit] for part in range(parts)]
    if not dispatch.allow_empty and (empty := sum(not positions for positions in shares)):
        what = "groups" if len(units) < table.total else "samples"
        least = "say dispatch: {allow_empty: true}, or give at least " + str(parts)
        raise RouteError(f"{len(units)} {what} for {parts} shares: {empty} of them would be empty; {least}")
    return shares


def _ends(span: range) -> tuple[int, int]:
    return span.start, span.stop


def _units(table: Table, placed: Sequence[tuple[int, int]], dispatch: Dispatch) -> list[range]:
    """What may not be parted: single samples, or runs of one group (groups lie together in the order of ids)."""
    depth = 0 if dispatch.split_groups else table.group_depth
    if not depth:
        return [range(position, position + 1) for position in range(len(placed))]
    units: list[range] = []
    last: Id | None = None
    for position, (speaker, index) in enumerate(placed):
        group = table.ids[speaker][index][:depth]
        if group == last:
            units[-1] = range(units[-1].start, position + 1)
        else:
            units.append(range(position, position + 1))
        last = group
    return units


def _balanced(units: Sequence[range], weights: Sequence[int], parts: int) -> list[list[int]]:
    """Longest first, each to the least loaded share: within a few per mille of even for real lengths."""
    loads = [(0, 0, part) for part in range(parts)]
    held: list[list[range]] = [[] for _ in range(parts)]
    for index in sorted(range(len(units)), key=lambda i: (-weights[i], i)):
        load, count, part = heapq.heappop(loads)
        held[part].append(units[index])
        heapq.heappush(loads, (load + weights[index], count + 1, part))
    return [[position for unit in sorted(mine, key=lambda unit: unit.start) for position in unit] for mine in held]


def heard_by(mesh: DeviceMesh, execute: str, speakers: int, rank: int) -> tuple[int, ...]:
    """Which speakers, by index, a rank of the called component hears; none where it is not called."""
    if execute == "first" and rank:
        return ()
    if execute == "peer":
        return tuple(speaker for speaker in range(speakers) if rank in peer_span(mesh.world_size, speaker, speakers))
    return tuple(range(speakers))


def shares_for(execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: Table) -> dict[int, list[tuple[int, int]]]:
    """rank of the called component -> the (speaker, index) of its samples, in sample order. Ranks that hear nothing are absent."""
    mode = DISPATCH[dispatch.mode]
    placed = order(table)
    if execute == "first":
        return {0: placed}
    if execute == "peer":
        return _peer_shares(mode, dispatch, mesh, table)
    shares = cut(table, placed, mode.shares(mesh), dispatch)
    return {rank: [placed[p] for p in shares[mode.share_of(mesh, rank)]] for rank in range(mesh.world_size)}


def _peer_shares(mode: DispatchMode, dispatch: Dispatch, mesh: DeviceMesh, table: Table) -> dict[int, list[tuple[int, int]]]:
    """Each producer's samples, dispatched over the workers that are its own."""
    heard: dict[int, list[tuple[int, int]]] = {}
    for speaker in range(len(table.ids)):
        span = peer_span(mesh.world_size, speaker, len(table.ids))
        alone = Table(
            tuple(ids if i == speaker else () for i, ids in enumerate(table.ids)), table.lengths, table.homes, table.group_depth
        )
        placed = order(alone)
        present = sorted({mode.share_of(mesh, rank) for rank in span})
        shares = cut(alone, placed, len(present), dispatch)
        for rank in span:
            mine = [placed[p] for p in shares[present.index(mode.share_of(mesh, rank))]]
            heard[rank] = heard.get(rank, []) + mine
    return {rank: sorted(mine, key=lambda at: table.ids[at[0]][at[1]]) for rank, mine in heard.items()}


def align(wanted: Sequence[Id], table: Table) -> list[tuple[int, int]]:
    """Where each wanted sample of another input lies. Raises `RouteError` for an id that one has and the other has not."""
    where = {id: (speaker, index) for speaker, ids in enumerate(table.ids) for index, id in enumerate(ids)}
    try:
        return [where[id] for id in wanted]
    except KeyError as missing:
        raise RouteError(f"sample {name_of(missing.args[0])} is missing") from None
