"""Which ranks of a group are on which node, in stretches instead of lists.

    stretch     neighbouring ranks that fill neighbouring nodes alike; 100,000 devices in a row are at most
                three
    boundary    a rank that is on another node than the rank before it; those of a stretch are evenly spaced

A question about one rank costs O(log stretches). Where a list of devices goes back to a node that it has
left, its nodes are looked at one by one: the list in the recipe is as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import Literal, Protocol

from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DeviceMesh


class Group(Protocol):
    """A device group by what places it."""

    @property
    def name(self) -> str: ...
    @property
    def device_type(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def devices(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def gpus_per_worker(self) -> int: ...


@dataclass(frozen=True)
class Stretch:
    """Neighbouring ranks of a group that fill neighbouring nodes alike."""

    first_rank: int
    ranks: int
    """How many, over all its nodes."""
    first_node: int
    each: int
    """Ranks per node."""
    first_device: int
    """The number, on each of the nodes, of the first device that they have there; -1 on cpu."""

    @property
    def nodes(self) -> int:
        """How many."""
        return self.ranks // self.each

    @property
    def last_node(self) -> int:
        return self.first_node + self.nodes - 1


def stretches(group: Group, cluster: Cluster) -> tuple[Stretch, ...]:
    """Where a group's ranks are, in as few stretches as possible."""
    found: list[Stretch] = []
    for more in (
        _on_cpu(group.workers, cluster.nodes) if group.device_type == "cpu" else _on_devices(group, cluster)
    ):
        if found and _alike(found[-1], more):
            found[-1] = replace(found[-1], ranks=found[-1].ranks + more.ranks)
        else:
            found.append(more)
    return tuple(found)


def _alike(one: Stretch, more: Stretch) -> bool:
    """Whether one goes on as the other on the node after its last."""
    return (one.last_node + 1, one.each, one.first_device) == (more.first_node, more.each, more.first_device)


def _on_cpu(workers: int, nodes: int) -> Iterator[Stretch]:
    """Evenly: the first nodes have one more."""
    each, more = divmod(workers, nodes)
    if more:
        yield Stretch(0, more * (each + 1), 0, each + 1, -1)
    if each:
        yield Stretch(more * (each + 1), (nodes - more) * each, more, each, -1)


def _on_devices(group: Group, cluster: Cluster) -> Iterator[Stretch]:
    rank = 0
    for start, stop in group.devices:
        for piece in cluster.pieces(group.device_type, start, stop):
            each, torn = divmod(piece.each, group.gpus_per_worker)
            if torn:
                raise ValueError(f"a worker of group {group.name} would have devices of more than one node")
            yield Stretch(rank, piece.nodes * each, piece.first_node, each, piece.number)
            rank += piece.nodes * each


# Look-ups


@dataclass(frozen=True)
class Seat:
    """Where one rank is."""

    node: int
    local_rank: int
    """How many lower ranks are on the same node."""
    number: int
    """Of its first device, on the node; -1 on cpu."""


@dataclass(frozen=True)
class Spread:
    """Where the ranks of one group are, by rank and by node."""

    stretches: tuple[Stretch, ...]
    per_worker: int = 1
    """Devices."""

    @property
    def ranks(self) -> int:
        return self.stretches[-1].first_rank + self.stretches[-1].ranks if self.stretches else 0

    @cached_property
    def in_order(self) -> bool:
        """Whether the nodes never fall from rank to rank, so that the ranks of a node are neighbours."""
        return all(one.last_node <= other.first_node for one, other in pairwise(self.stretches))

    def seat(self, rank: int) -> Seat:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"the group has {self.ranks} workers, there is no rank {rank}")
        index = bisect_right(self._first_ranks, rank) - 1
        stretch = self.stretches[index]
        along, local = divmod(rank - stretch.first_rank, stretch.each)
        node = stretch.first_node + along
        number = -1 if stretch.first_device < 0 else stretch.first_device + local * self.per_worker
        return Seat(node, self._before(index, node) + local, number)

    def on(self, node: int) -> Iterator[int]:
        """The ranks on a node, rising."""
        for index in self._at(node):
            stretch = self.stretches[index]
            first = stretch.first_rank + (node - stretch.first_node) * stretch.each
            yield from range(first, first + stretch.each)

    @cached_property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        """The nodes that have ranks, as runs [start, stop)."""
        runs: list[tuple[int, int]] = []
        for first, last in sorted((stretch.first_node, stretch.last_node) for stretch in self.stretches):
            if runs and first <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(runs[-1][1], last + 1))
            else:
                runs.append((first, last + 1))
        return tuple(runs)

    def _at(self, node: int) -> range | list[int]:
        """The stretches that have ranks on a node."""
        if not self.in_order:
            return self._visits.get(node, [])
        return range(bisect_left(self._last_nodes, node), bisect_right(self._first_nodes, node))

    def _before(self, index: int, node: int) -> int:
        """How many ranks of earlier stretches are on a node."""
        if not self.in_order:
            return self._taken[index, node]
        return self._shared[index] if node == self.stretches[index].first_node else 0

    @cached_property
    def _first_ranks(self) -> list[int]:
        return [stretch.first_rank for stretch in self.stretches]

    @cached_property
    def _first_nodes(self) -> list[int]:
        return [stretch.first_node for stretch in self.stretches]

    @cached_property
    def _last_nodes(self) -> list[int]:
        return [stretch.last_node for stretch in self.stretches]

    @cached_property
    def _shared(self) -> list[int]:
        """Where nodes rise: the earlier ranks on the first node of each stretch, the only one that it can
        share with earlier ones."""
        counts = [0]
        for one, other in pairwise(self.stretches):
            here = one.each + (counts[-1] if one.nodes == 1 else 0)
            counts.append(here if one.last_node == other.first_node else 0)
        return counts

    @cached_property
    def _visits(self) -> dict[int, list[int]]:
        """Where nodes come back: the stretches of each."""
        visits: dict[int, list[int]] = {}
        for index, stretch in enumerate(self.stretches):
            for node in range(stretch.first_node, stretch.last_node + 1):
                visits.setdefault(node, []).append(index)
        return visits

    @cached_property
    def _taken(self) -> dict[tuple[int, int], int]:
        """Where nodes come back: (stretch, node) -> how many earlier ranks are on it."""
        taken: dict[tuple[int, int], int] = {}
        for node, indices in self._visits.items():
            before = 0
            for index in indices:
                taken[index, node] = before
                before += self.stretches[index].each
        return taken


# Process groups


def crossing(stretches: tuple[Stretch, ...], mesh: DeviceMesh, dim: str) -> Literal["inside", "some", "all"]:
    """Whether the process groups along a dim stay inside a node, or some or all of them leave one."""
    spread, size, stride = Spread(stretches), mesh.size(dim), mesh.stride(dim)
    if size == 1:
        return "inside"
    if stride is None or not spread.in_order or not _is_world(mesh, spread.ranks):
        return _listed(spread, mesh, dim)
    blocks, cuts = _Blocks(size * stride, stride), list(_boundaries(stretches))
    if all(cut.only_at(blocks.length) for cut in cuts):
        return "inside"
    return "all" if _everywhere(cuts, blocks, stretches) else "some"


def _is_world(mesh: DeviceMesh, ranks: int) -> bool:
    """Whether its ranks are 0 .. ranks - 1, so that a stride and a size are a digit of the rank."""
    last = {dim: size - 1 for dim, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True)}
    return mesh.world_size == ranks and mesh.rank({}) == 0 and mesh.rank(last) == ranks - 1


def _listed(spread: Spread, mesh: DeviceMesh, dim: str) -> Literal["inside", "some", "all"]:
    """Group by group, until one has stayed and one has left."""
    seen: set[bool] = set()
    for ranks in mesh.process_groups(dim):
        seen.add(len({spread.seat(rank).node for rank in ranks}) > 1)
        if len(seen) == 2:
            return "some"
    return "all" if True in seen else "inside"


@dataclass(frozen=True)
class _Boundaries:
    """Those of one stretch: first, first + step, ..."""

    first: int
    step: int
    count: int

    def only_at(self, length: int) -> bool:
        """Whether all of them are multiples of a length."""
        return self.count == 0 or (self.first % length == 0 and (self.count == 1 or self.step % length == 0))

    def from_(self, rank: int) -> int | None:
        """The first that is not below a rank."""
        index = max(0, -((self.first - rank) // self.step))
        return self.first + index * self.step if index < self.count else None

    def up_to(self, rank: int) -> int | None:
        """The last that is not above a rank."""
        index = min(self.count - 1, (rank - self.first) // self.step)
        return self.first + index * self.step if index >= 0 else None


def _boundaries(stretches: tuple[Stretch, ...]) -> Iterator[_Boundaries]:
    last_node = -1
    for stretch in stretches:
        goes_on = stretch.first_node == last_node
        yield _Boundaries(stretch.first_rank + goes_on * stretch.each, stretch.each, stretch.nodes - goes_on)
        last_node = stretch.last_node


@dataclass(frozen=True)
class _Blocks:
    """Ranks fall into blocks of size x stride; the group of corner b of a block, b < stride, is b, b +
    stride, ... in it.

    A boundary at offset o of a block cuts the groups of the corners o - reach .. o - 1, reach = (size - 1) x
    stride.
    """

    length: int
    stride: int

    def cut(self, block: int, cuts: _Boundaries) -> tuple[int, int]:
        """What boundaries do to a block: the corners below the first number are cut, and those from the
        second on."""
        start, reach = block * self.length, self.length - self.stride
        low, high = cuts.up_to(start + self.stride), cuts.from_(start + reach + 1)
        middle = cuts.from_(start + self.stride)
        if middle is not None and middle <= start + reach:
            return self.stride, 0
        below = max(low - start, 0) if low is not None else 0
        beyond = high - start - reach if high is not None and high < start + self.length else self.stride
        return below, beyond


def _everywhere(cuts: list[_Boundaries], blocks: _Blocks, stretches: tuple[Stretch, ...]) -> bool:
    """Whether every group of every block is cut.

    A block inside one stretch looks like the one that comes after the least common multiple of block and
    node; the others hold the end of a stretch, and each stretch has a part in at most two of those.
    """
    edges: dict[int, tuple[int, int]] = {}
    for stretch, mine in zip(stretches, cuts, strict=True):
        first, last = (
            stretch.first_rank // blocks.length,
            (stretch.first_rank + stretch.ranks - 1) // blocks.length,
        )
        for block in {first, last}:
            below, beyond = blocks.cut(block, mine)
            low, high = edges.get(block, (0, blocks.stride))
            edges[block] = max(low, below), min(high, beyond)
        period = stretch.each // gcd(stretch.each, blocks.length)
        for block in range(first + 1, min(last, first + 1 + period)):
            below, beyond = blocks.cut(block, mine)
            if below < beyond:
                return False
    return all(below >= beyond for below, beyond in edges.values())
