"""Computes the node of each rank of a group, as runs instead of lists.

    node run    consecutive ranks on consecutive nodes, with the same number of ranks and the same devices on
                each of them; 100,000 consecutive devices of equal nodes are at most three runs

A look-up costs as much as there are runs, and not as there are ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise, repeat
from operator import ne
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.topology.cluster import Cluster, NodeRanges
from meshctl.topology.device_ranges import DeviceRanges, merged
from meshctl.topology.mesh import DeviceMesh


@dataclass(frozen=True)
class NodeRun:
    """Consecutive ranks of a group on consecutive nodes, with the same number of ranks and the same devices
    on each of these nodes."""

    first_rank: int
    ranks: int
    """The number of ranks on all nodes of the run together."""
    first_node: int
    each: int
    """Ranks per node."""
    first_device: int
    """The first device of the run on each of its nodes, numbered on the node; -1 on cpu."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.ranks // self.each

    @property
    def last_node(self) -> int:
        return self.first_node + self.nodes - 1


def node_runs(
    cluster: Cluster, kind: str, workers: int, devices: DeviceRanges, each: int = 1, nodes: NodeRanges = ()
) -> tuple[NodeRun, ...]:
    """Returns the nodes and devices of the ranks of a group, in as few runs as possible.

    `each` is the number of devices of a worker, and `nodes` those of a group on cpu; empty for all. Raises
    `ValueError` if a worker would have devices of several nodes.
    """
    if kind == "cpu":
        return joined(_on_cpu(workers, nodes or ((0, cluster.nodes),)))
    return joined(_on_devices(cluster, kind, devices, each))


def joined(runs: Iterable[NodeRun]) -> tuple[NodeRun, ...]:
    """Returns the runs, each joined with those that fill the following nodes in the same way."""
    found: list[NodeRun] = []
    for run in runs:
        last = found[-1] if found else run
        same = (last.last_node + 1, last.each, last.first_device)
        if found and (run.first_node, run.each, run.first_device) == same:
            found[-1] = replace(last, ranks=last.ranks + run.ranks)
        else:
            found.append(run)
    return tuple(found)


def _on_cpu(workers: int, nodes: NodeRanges) -> Iterator[NodeRun]:
    """Yields the runs of workers that are spread evenly over nodes. The first `workers mod nodes` nodes have
    one worker more."""
    each, more = divmod(workers, sum(stop - start for start, stop in nodes))
    rank = 0
    for start, stop in nodes:
        full = min(more, stop - start)
        more -= full
        for first, count, some in ((start, full, each + 1), (start + full, stop - start - full, each)):
            if count and some:
                yield NodeRun(rank, count * some, first, some, -1)
                rank += count * some


def _on_devices(cluster: Cluster, kind: str, devices: DeviceRanges, each: int) -> Iterator[NodeRun]:
    rank = 0
    for start, stop in devices:
        for piece in cluster.pieces(kind, start, stop):
            workers, rest = divmod(piece.each, each)
            if rest:
                raise ValueError("a worker would have devices of more than one node")
            yield NodeRun(rank, piece.nodes * workers, piece.first_node, workers, piece.number)
            rank += piece.nodes * workers


# Look-ups


@dataclass(frozen=True)
class RankLocation:
    """The node of one rank, and its position there."""

    node: int
    local_rank: int
    """The number of lower ranks on the same node."""
    first_device: int
    """The first device of the rank, numbered on the node; -1 on cpu."""


@dataclass(frozen=True)
class GroupPlacement:
    """The locations of all ranks of one group, by rank and by node."""

    runs: tuple[NodeRun, ...]
    gpus_per_worker: int = 1

    @property
    def ranks(self) -> int:
        return self.runs[-1].first_rank + self.runs[-1].ranks if self.runs else 0

    @cached_property
    def is_in_order(self) -> bool:
        """True if no rank is on a lower node than the rank before it, so that the ranks of a node are
        consecutive."""
        return all(one.last_node <= other.first_node for one, other in pairwise(self.runs))

    def locate(self, rank: int) -> RankLocation:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank} does not exist; the group has {self.ranks} workers")
        index = bisect_right(self._first_ranks, rank) - 1
        run = self.runs[index]
        node_index, index_on_node = divmod(rank - run.first_rank, run.each)
        node = run.first_node + node_index
        first_device = -1
        if run.first_device >= 0:
            first_device = run.first_device + index_on_node * self.gpus_per_worker
        before = sum(one.each for one in self.runs[:index] if one.first_node <= node <= one.last_node)
        return RankLocation(node, before + index_on_node, first_device)

    def on(self, node: int) -> Iterator[int]:
        """Yields the ranks on a node in rising order."""
        for run in self.runs:
            if run.first_node <= node <= run.last_node:
                first = run.first_rank + (node - run.first_node) * run.each
                yield from range(first, first + run.each)

    @cached_property
    def nodes(self) -> tuple[tuple[int, int], ...]:
        """The nodes that have ranks, as ranges [start, stop)."""
        return tuple(merged(sorted((run.first_node, run.last_node + 1) for run in self.runs)))

    @cached_property
    def _first_ranks(self) -> list[int]:
        return [run.first_rank for run in self.runs]


# Process groups

Reach = Literal["inside", "some", "all"]
"""The process groups of a dim that span several nodes: none ("inside"), some or all."""


def span_nodes(runs: tuple[NodeRun, ...], mesh: DeviceMesh, dim: str) -> Reach:
    """Finds out if none, some or all process groups of a dim span several nodes."""
    size, stride = mesh.size(dim), mesh.stride(dim)
    if size == 1:
        return "inside"
    nodes = _nodes_of_ranks(runs)
    last = {dim: size - 1 for dim, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True)}
    is_whole = mesh.world_size == len(nodes) and mesh.rank({}) == 0 and mesh.rank(last) == len(nodes) - 1
    if stride is None or not is_whole or not GroupPlacement(runs).is_in_order:
        spans = {len({nodes[rank] for rank in ranks}) > 1 for ranks in mesh.process_groups(dim)}
    else:  # the first and the last rank of each group, by the fewest slices
        block, reach = size * stride, (size - 1) * stride
        if stride * block <= len(nodes):
            slices = [(slice(at, None, block), slice(at + reach, None, block)) for at in range(stride)]
        else:
            starts = range(0, len(nodes), block)
            slices = [(slice(at, at + stride), slice(at + reach, at + block)) for at in starts]
        spans = {span for first, last in slices for span in map(ne, nodes[first], nodes[last])}
    return "some" if len(spans) == 2 else "all" if True in spans else "inside"


@lru_cache(maxsize=16)
def _nodes_of_ranks(runs: tuple[NodeRun, ...]) -> list[int]:
    repeated = (repeat(run.first_node + place, run.each) for run in runs for place in range(run.nodes))
    return list(chain.from_iterable(repeated))
