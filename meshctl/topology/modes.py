"""Collect, dispatch and execute: how the value of one stage becomes the input of another.

    producers' mesh --collect--> one batch in sample order --dispatch--> shares --execute--> consumers' mesh

A mode is one object with two halves. The functions of the first half take meshes and return the ranks that
take part, for one rank or one producer at a time, so that no list of all ranks is created. The functions of
the second half take batches and return the samples of each share, or the joined value. Rules and pictures
query a mode's properties and never compare its name. A new mode is one entry in `DISPATCH`, `COLLECT` or
`EXECUTE`, or an object in a user's module that a decorator names
(`@endpoint(dispatch="mymodes:INTERLEAVED")`).

The plan stores routes. A `Route` connects a stage's value to a parameter of a later stage. Each rank computes
which samples move between which ranks from the route, the two meshes and the `SampleTable` of the step; all
ranks get the same result without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.topology.mesh import DeviceMesh, even_split, split_index
from meshctl.topology.partition import Dispatch as Dispatch
from meshctl.topology.partition import partition
from meshctl.topology.samples import Run, SampleTable

Join = Literal["samples", "mean", "sum", "first", "list"]


@dataclass(frozen=True)
class RankSet:
    """An ordered set of ranks of a mesh, described by functions of the mesh instead of a list."""

    count: Callable[[DeviceMesh], int]
    """The number of ranks: (mesh) -> count."""
    rank_at: Callable[[DeviceMesh, int], int]
    """The rank at an index of the set: (mesh, index) -> rank."""
    index_of: Callable[[DeviceMesh, int], int | None]
    """The index of a rank: (mesh, rank) -> index; None for a rank that is not in the set."""

    @classmethod
    def only(cls, rank: Callable[[DeviceMesh], int]) -> RankSet:
        """The set of one rank."""
        return cls(
            lambda mesh: 1,
            lambda mesh, index: rank(mesh),
            lambda mesh, other: 0 if other == rank(mesh) else None,
        )

    def ranks(self, mesh: DeviceMesh) -> tuple[int, ...]:
        """All ranks of the set, in its order."""
        return tuple(self.rank_at(mesh, index) for index in range(self.count(mesh)))


def is_user_mode(name: str) -> bool:
    """Returns whether a mode is user-defined: its name is `module:NAME`, which only workers import."""
    return ":" in name


def shown_mode(name: str) -> str:
    """Returns a mode's name in pictures: `by NAME` for the user-defined mode `module:NAME`."""
    return f"by {name.partition(':')[2]}" if is_user_mode(name) else name


# Dispatch: the samples that each consumer receives


def _data_size(mesh: DeviceMesh) -> int:
    return mesh.data_size


def _data_peer(mesh: DeviceMesh, rank: int, data_rank: int) -> int:
    """The rank that belongs to `data_rank` and otherwise has the coordinates of `rank`, also in ulysses."""
    fsdp = mesh.size("fsdp")
    flat = mesh.dim_rank(rank, "dp") * fsdp + mesh.dim_rank(rank, "fsdp")
    row, column = divmod(data_rank * mesh.ulysses_size + flat % mesh.ulysses_size, fsdp)
    return mesh.rank({**mesh.coordinate(rank), "dp": row, "fsdp": column})


@dataclass(frozen=True)
class DispatchMode:
    """The distribution of an input over the ranks of the called component.

    A batch is partitioned into shares, and each rank receives one of them. The defaults are those of
    `slice_dp`: one share per data rank, contiguous and even. A user's mode usually replaces `partition`
    alone:

        def interleaved(table: SampleTable, parts: int, options: Dispatch) -> list[list[Run]]:
            return [table.select(range(part, table.total, parts)) for part in range(parts)]

        INTERLEAVED = DispatchMode(partition=interleaved)
    """

    share_count: Callable[[DeviceMesh], int] = _data_size
    """The number of shares: (mesh) -> count."""
    share_of: Callable[[DeviceMesh, int], int] = DeviceMesh.data_rank
    """The share that a rank receives: (mesh, rank) -> share."""
    partition: Callable[[SampleTable, int, Dispatch], Sequence[Sequence[Run]]] = partition
    """The samples of each share, in sample order: (table, shares, options) -> runs per share. It is a pure
    function, because every producer and consumer calls it and must get the same result."""
    counterpart: Callable[[DeviceMesh, int, int], int] = _data_peer
    """(mesh, rank, share) -> the rank that receives `share` and whose position among the ranks of that share
    is the position of `rank` among the ranks of its own share."""
    ranks_per_share: Callable[[DeviceMesh], int | None] = lambda mesh: mesh.stride("data")
    """The number n of consecutive ranks that receive the same share: ranks 0 to n - 1 receive share 0, the
    next n ranks share 1, and after the last share the ranks continue with share 0. None if the ranks of
    the shares do not follow this pattern."""
    cuts_samples: bool = True
    """True if different ranks may receive different samples."""

    @property
    def is_even(self) -> bool:
        """True if the mode partitions as `slice_dp` does: into contiguous shares of equal counts, unless the
        options have `balance` or `home`."""
        return self.partition is partition

    @property
    def is_by_data_rank(self) -> bool:
        """True if the ranks of one data rank, its tp, cp, ulysses and pp peers, receive the same samples, and
        each data rank its own."""
        return self.share_of is DeviceMesh.data_rank

    def counts(self, total: int, parts: int) -> tuple[int, ...]:
        """The number of samples in each share of an even batch of `total`."""
        return tuple(len(even_split(total, parts, part)) for part in range(parts))

    def shares_of(self, mesh: DeviceMesh, ranks: range) -> tuple[range, ...]:
        """The shares that consecutive ranks receive, as ranges of share numbers in rising order."""
        step, shares = self.ranks_per_share(mesh), self.share_count(mesh)
        if step is None:
            numbers = sorted({self.share_of(mesh, rank) for rank in ranks})
            runs: list[range] = []
            for number in numbers:
                if runs and runs[-1].stop == number:
                    runs[-1] = range(runs[-1].start, number + 1)
                else:
                    runs.append(range(number, number + 1))
            return tuple(runs)
        first, last = ranks.start // step, (ranks.stop - 1) // step
        if last - first >= shares - 1:
            return (range(shares),)
        first, last = first % shares, last % shares
        return (range(first, last + 1),) if first <= last else (range(last + 1), range(first, shares))


DISPATCH: Mapping[str, DispatchMode] = {
    "slice_dp": DispatchMode(),
    "slice": DispatchMode(
        share_count=lambda mesh: mesh.world_size,
        share_of=lambda mesh, rank: rank,
        counterpart=lambda mesh, rank, share: share,
        ranks_per_share=lambda mesh: 1,
    ),
    "all": DispatchMode(
        share_count=lambda mesh: 1,
        share_of=lambda mesh, rank: 0,
        counterpart=lambda mesh, rank, share: rank,
        ranks_per_share=lambda mesh: 1,
        cuts_samples=False,
    ),
}


# Collect: the ranks that produce a stage's value, and the function that joins their parts


def _index_of_representative(mesh: DeviceMesh, rank: int) -> int | None:
    data_rank = mesh.data_rank(rank)
    return data_rank if mesh.representative(data_rank) == rank else None


def _stage_dims(mesh: DeviceMesh) -> tuple[str, ...]:
    """The dims within a pipeline stage, outermost first."""
    return tuple(dim for dim in mesh.mesh_dim_names if dim != "pp")


def _last_stage_rank(mesh: DeviceMesh, index: int) -> int:
    """The rank at an index of the last pipeline stage, row-major."""
    coordinate = {"pp": mesh.size("pp") - 1}
    for dim in reversed(_stage_dims(mesh)):
        index, coordinate[dim] = divmod(index, mesh.size(dim))
    return mesh.rank(coordinate)


def _last_stage_index(mesh: DeviceMesh, rank: int) -> int | None:
    if not mesh.is_last(rank, "pp"):
        return None
    coordinate, index = mesh.coordinate(rank), 0
    for dim in _stage_dims(mesh):
        index = index * mesh.size(dim) + coordinate[dim]
    return index


REPRESENTATIVES = RankSet(_data_size, DeviceMesh.representative, _index_of_representative)
EVERY_RANK = RankSet(lambda mesh: mesh.world_size, lambda mesh, index: index, lambda mesh, rank: rank)
LAST_STAGE = RankSet(lambda mesh: mesh.world_size // mesh.size("pp"), _last_stage_rank, _last_stage_index)


@dataclass(frozen=True)
class CollectMode:
    """The ranks that produce a stage's value, and the function that joins their parts. A user-defined mode:

    def largest(parts: Sequence[tuple[Any, float]]) -> Any:
        return max(value for value, weight in parts)

    LARGEST = CollectMode(join=largest)
    """

    producers: RankSet = REPRESENTATIVES
    """By default, one representative per data rank."""
    join: Join | Callable[[Sequence[tuple[Any, float]]], Any] = "samples"
    """`samples`: one batch in sample order. `mean`, `sum`: numbers, by data rank. `first`: the only value.
    `list`: all values. A function receives the producers' values in order, each with its weight (its number
    of samples), and returns the joined value; it is pure, because every consumer calls it."""

    @property
    def is_batch(self) -> bool:
        """True if parts join into one batch in sample order."""
        return self.join == "samples"

    @property
    def is_reduced(self) -> bool:
        """True if parts are numbers that are averaged or added."""
        return self.join in ("mean", "sum")

    @property
    def is_list(self) -> bool:
        """True if the value is the list of all parts."""
        return self.join == "list"

    @property
    def is_first(self) -> bool:
        """True if one rank alone produces the value, which may be a batch."""
        return self.join == "first"


COLLECT: Mapping[str, CollectMode] = {
    "flatten": CollectMode(),
    "mean": CollectMode(join="mean"),
    "sum": CollectMode(join="sum"),
    "first": CollectMode(RankSet.only(lambda mesh: mesh.representative(0)), "first"),
    "last_pp_first": CollectMode(RankSet.only(lambda mesh: _last_stage_rank(mesh, 0)), "first"),
    "none": CollectMode(EVERY_RANK, "list"),
    "last_pp": CollectMode(LAST_STAGE, "list"),
}


# Execute: the workers that are called, and the producers of their samples


def peer_workers(workers: int, producer: int, producers: int) -> range:
    """The workers over which `execute: peer` dispatches a producer's samples: an even share of all workers,
    or worker `producer mod workers` where there are fewer workers than producers."""
    if workers >= producers:
        return even_split(workers, producers, producer)
    return range(producer % workers, producer % workers + 1)


def _producers_of_peer(workers: int, producers: int, rank: int) -> range:
    """The inverse of `peer_workers`: the producers whose samples a worker may receive."""
    if workers < producers:
        return range(rank, producers, workers)
    producer = split_index(workers, producers, rank)
    return range(producer, producer + 1)


@dataclass(frozen=True)
class ExecuteMode:
    """The workers of a component that a stage calls, and the producers whose samples each of them receives.
    The default calls all workers and dispatches one batch over them."""

    only: RankSet | None = None
    """The only worker that is called. It receives the whole batch, whatever the dispatch mode is. None if all
    workers are called."""
    workers_of: Callable[[int, int, int], range] | None = None
    """(workers, producer, producers) -> the workers over which only this producer's samples are dispatched.
    None if all producers' samples form one batch."""
    producers_of: Callable[[int, int, int], range] | None = None
    """(workers, producers, rank) -> the producers that supply a worker: the inverse of `workers_of`."""

    @property
    def is_single(self) -> bool:
        """True if one worker alone is called."""
        return self.only is not None

    @property
    def is_per_producer(self) -> bool:
        """True if each producer's samples are dispatched over separate workers."""
        return self.workers_of is not None

    @property
    def is_joint(self) -> bool:
        """True if all workers are called with shares of one batch."""
        return self.only is None and self.workers_of is None

    @property
    def workers(self) -> RankSet:
        """The workers that are called."""
        return self.only or EVERY_RANK

    def is_called(self, mesh: DeviceMesh, rank: int) -> bool:
        return self.workers.index_of(mesh, rank) is not None


EXECUTE: Mapping[str, ExecuteMode] = {
    "all": ExecuteMode(),
    "first": ExecuteMode(only=RankSet.only(lambda mesh: 0)),
    "peer": ExecuteMode(workers_of=peer_workers, producers_of=_producers_of_peer),
}


# Both ends of a route


def producer_set(collect: CollectMode, execute: ExecuteMode) -> RankSet:
    """Returns the ranks that produce a stage's value. If only one worker is called, it is the only one."""
    return execute.only or collect.producers


def workers_of(mesh: DeviceMesh, execute: ExecuteMode, producer: int, producers: int) -> range:
    """The ranks that may receive samples of a producer."""
    if execute.only is not None:
        rank = execute.only.rank_at(mesh, 0)
        return range(rank, rank + 1)
    if execute.workers_of is not None:
        return execute.workers_of(mesh.world_size, producer, producers)
    return range(mesh.world_size)


def producers_of(mesh: DeviceMesh, execute: ExecuteMode, producers: int, rank: int) -> range:
    """The indices of the producers that may supply a rank; empty for a rank that is not called."""
    if not execute.is_called(mesh, rank):
        return range(0)
    if execute.producers_of is not None:
        return execute.producers_of(mesh.world_size, producers, rank)
    return range(producers)


def part_count(mesh: DeviceMesh, execute: ExecuteMode, mode: DispatchMode, producers: int) -> int:
    """Returns the number of different parts of a batch that workers receive. If the execute mode is per
    producer, these are the parts of all producers together, as long as no data rank has two producers."""
    if execute.is_single:
        return 1
    shares = mode.share_count(mesh)
    return shares if execute.is_joint else max(shares, producers)


# Routes


@dataclass(frozen=True)
class Route:
    """The connection from a stage's value to a parameter of a later stage, or the connection that transfers
    weights. The route of a sync has the sync stage as source and target."""

    name: str
    """`SOURCE -> TARGET`, with `.PARAMETER` if the target has several inputs."""
    source: str
    """The producing stage."""
    target: str
    """The consuming stage."""
    parameter: str = ""
    """The parameter of the called method; empty if the recipe does not name it, because the call has one
    input."""
    kind: Literal["data", "weights"] = "data"
    collect: str = "flatten"
    dispatch: Dispatch = Dispatch()
    slots: int = 2
    """The number of values in flight per connection before a send waits."""
