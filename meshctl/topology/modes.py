"""Who speaks, who hears, which samples: dispatch, execute and collect as functions of two meshes and the
counts.

    producers' mesh --collect--> one batch in sample order --dispatch--> shares --execute--> consumers' mesh

A `Route` is what the plan stores: from a stage's value to a parameter of the stage that takes it. Its `Link`s
are derived, by every rank alone and with the same result, from the route, the two meshes and the `Table` of
what each speaker holds.

Sample order is the order of ids. A sample's id is a tuple of numbers: 17, and (17, 3) for the fourth sample
made from it. A new mode is one entry in `DISPATCH` or `COLLECT`, with its half for meshes and its half for
batches; the half for meshes answers for one rank or one speaker at a time, so that nothing lists the world
that need not be a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Literal

from meshctl.topology.mesh import DeviceMesh, share, share_of

Id = tuple[int, ...]
Join = Literal["samples", "mean", "sum", "first", "list"]


class RouteError(ValueError):
    """Samples that cannot be shared out as the recipe says; the message names numbers, the caller adds route
    and step."""


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
    equal_counts: bool = field(default=False, metadata={"sparse": True})
    """Where tokens are balanced: counts of what stays together differ by one at most."""


@dataclass(frozen=True)
class DispatchMode:
    shares: Callable[[DeviceMesh], int]
    """How many different shares there are."""
    share_of: Callable[[DeviceMesh, int], int]
    """Which of them a rank gets."""
    holder: Callable[[DeviceMesh, int, int], int]
    """Of the ranks that get a share, the one that stands to it as a given rank stands to its own: (mesh,
    rank, share) -> rank."""
    step: Callable[[DeviceMesh], int | None]
    """So many neighbouring ranks get share 0, as many the next, and after the last share 0 again; none where
    it is not so even."""

    def among(self, mesh: DeviceMesh, ranks: range) -> tuple[range, ...]:
        """The shares that neighbouring ranks get, rising, in runs."""
        step, shares = self.step(mesh), self.shares(mesh)
        if step is None:
            return _runs(sorted({self.share_of(mesh, rank) for rank in ranks}))
        first, last = ranks.start // step, (ranks.stop - 1) // step
        if last - first >= shares - 1:
            return (range(shares),)
        first, last = first % shares, last % shares
        return (range(first, last + 1),) if first <= last else (range(last + 1), range(first, shares))


def _runs(numbers: Sequence[int]) -> tuple[range, ...]:
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


def _data_peer(mesh: DeviceMesh, rank: int, data_rank: int) -> int:
    """The rank of another data rank with the same coordinates otherwise."""
    flat = mesh.dim_rank(rank, "dp") * mesh.size("fsdp") + mesh.dim_rank(rank, "fsdp")
    dp, fsdp = divmod(data_rank * mesh.ulysses_size + flat % mesh.ulysses_size, mesh.size("fsdp"))
    return mesh.rank({**mesh.coordinate(rank), "dp": dp, "fsdp": fsdp})


DISPATCH: Mapping[str, DispatchMode] = {
    "slice_dp": DispatchMode(
        lambda mesh: mesh.data_size, DeviceMesh.data_rank, _data_peer, lambda mesh: mesh.stride("data")
    ),
    "slice": DispatchMode(
        lambda mesh: mesh.world_size, lambda mesh, rank: rank, lambda mesh, rank, share: share, lambda mesh: 1
    ),
    "all": DispatchMode(lambda mesh: 1, lambda mesh, rank: 0, lambda mesh, rank, share: rank, lambda mesh: 1),
}
EXECUTE = ("all", "first", "peer")


# Collect: who speaks, and how the parts join


@dataclass(frozen=True)
class Speakers:
    """The ranks whose values count, in the order in which they join: how many, which, and which number a rank
    is. Nothing lists them."""

    count: Callable[[DeviceMesh], int]
    rank: Callable[[DeviceMesh, int], int]
    """The rank of the i-th."""
    number: Callable[[DeviceMesh, int], int | None]
    """Which of them a rank is; none where it does not speak."""


@dataclass(frozen=True)
class CollectMode:
    speakers: Speakers
    join: Join
    """`samples`: one batch in sample order; `mean`, `sum`: numbers, by data rank; `first`: the only value;
    `list`: all of them."""


def _number_of_representative(mesh: DeviceMesh, rank: int) -> int | None:
    data_rank = mesh.data_rank(rank)
    return data_rank if mesh.representative(data_rank) == rank else None


def _inner(mesh: DeviceMesh) -> tuple[str, ...]:
    """The dims within a pipeline stage, outermost first."""
    return tuple(dim for dim in mesh.mesh_dim_names if dim != "pp")


def _of_last_stage(mesh: DeviceMesh, number: int) -> int:
    """The number-th rank of the last pipeline stage, row-major."""
    at = {"pp": mesh.size("pp") - 1}
    for dim in reversed(_inner(mesh)):
        number, at[dim] = divmod(number, mesh.size(dim))
    return mesh.rank(at)


def _number_in_last_stage(mesh: DeviceMesh, rank: int) -> int | None:
    at, number = mesh.coordinate(rank), 0
    for dim in _inner(mesh):
        number = number * mesh.size(dim) + at[dim]
    return number if mesh.is_last(rank, "pp") else None


def _only(speaker: Callable[[DeviceMesh], int]) -> Speakers:
    return Speakers(
        lambda mesh: 1,
        lambda mesh, number: speaker(mesh),
        lambda mesh, rank: 0 if rank == speaker(mesh) else None,
    )


REPRESENTATIVES = Speakers(lambda mesh: mesh.data_size, DeviceMesh.representative, _number_of_representative)
EVERYBODY = Speakers(lambda mesh: mesh.world_size, lambda mesh, number: number, lambda mesh, rank: rank)
LAST_STAGE = Speakers(lambda mesh: mesh.world_size // mesh.size("pp"), _of_last_stage, _number_in_last_stage)
WORKER_0 = _only(lambda mesh: 0)
COLLECT: Mapping[str, CollectMode] = {
    "flatten": CollectMode(REPRESENTATIVES, "samples"),
    "mean": CollectMode(REPRESENTATIVES, "mean"),
    "sum": CollectMode(REPRESENTATIVES, "sum"),
    "first": CollectMode(_only(lambda mesh: mesh.representative(0)), "first"),
    "last_pp_first": CollectMode(_only(lambda mesh: _of_last_stage(mesh, 0)), "first"),
    "none": CollectMode(EVERYBODY, "list"),
    "last_pp": CollectMode(LAST_STAGE, "list"),
}


def voices(collect: str, execute: str = "all") -> Speakers:
    """Who speaks for a stage's value; with `execute: first` only worker 0 has one."""
    return WORKER_0 if execute == "first" else COLLECT[collect].speakers


def speakers(mesh: DeviceMesh, collect: str, execute: str = "all") -> tuple[int, ...]:
    """The ranks that give a stage's value."""
    who = voices(collect, execute)
    return tuple(who.rank(mesh, number) for number in range(who.count(mesh)))


# Execute: whose samples a worker gets


def peer_span(workers: int, producer: int, producers: int) -> range:
    """`execute: peer`: the workers that belong to a producer: its even share of them, or number `producer mod
    workers`."""
    if workers >= producers:
        return share(workers, producers, producer)
    return range(producer % workers, producer % workers + 1)


def hearers(mesh: DeviceMesh, execute: str) -> int:
    """How many ranks of the called component hear anybody."""
    return 1 if execute == "first" else mesh.world_size


def shares(mesh: DeviceMesh, execute: str, dispatch: str, speakers: int) -> int:
    """Into how many different shares a batch is cut; for `peer`, the parts of all speakers together."""
    mode = DISPATCH[dispatch]
    if execute != "peer":
        return 1 if execute == "first" else mode.shares(mesh)
    each, more = divmod(mesh.world_size, speakers)
    if not each:
        return speakers
    return _parts(mode, mesh, speakers, range(more)) + _parts(mode, mesh, speakers, range(more, speakers))


def _parts(mode: DispatchMode, mesh: DeviceMesh, speakers: int, some: range) -> int:
    """Of neighbouring speakers with equal spans: spans that begin at the same place of a `step` are cut
    alike."""

    def of(numbers: range) -> int:
        return sum(
            len(run)
            for number in numbers
            for run in mode.among(mesh, peer_span(mesh.world_size, number, speakers))
        )

    if not some:
        return 0
    step, size = mode.step(mesh), len(peer_span(mesh.world_size, some.start, speakers))
    period = step // gcd(step, size) if step else len(some)
    times, rest = divmod(len(some), period)
    return (times * of(some[:period]) if times else 0) + of(some[:rest])


# Routes


@dataclass(frozen=True)
class Route:
    """From a stage's value to a parameter of the stage that takes it; a weight route goes from a sync stage
    to itself."""

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


def heard_by(mesh: DeviceMesh, execute: str, speakers: int, rank: int) -> range:
    """Which speakers, by index, a rank of the called component hears; none where it is not called."""
    if execute == "first" and rank:
        return range(0)
    if execute == "peer" and mesh.world_size < speakers:
        return range(rank, speakers, mesh.world_size)
    if execute == "peer":
        speaker = share_of(mesh.world_size, speakers, rank)
        return range(speaker, speaker + 1)
    return range(speakers)
