"""The common base of all routes: their two sides and their tags.

    open()              of a sync: the sides agree on what travels, before the first step and after a resume
    send(value, step)   every producer rank, in each step in which the source stage runs
    receive(step)       every consumer rank
    close(last)         of a sync: the run's last step is known, what was sent after it is forgotten

A frame of a route contains the generation of the route, which grows with each restart of one of its groups.
So frames of processes that have ended are recognised (`resumable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.runtime.routes.step import StepHeader
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route

VALUES, TABLES, REALIGN, SHARED_WRITE, FORWARD = range(5)
"""The tags of a route, counted from its first: values; rows exchanged within a side (and the layouts of
weights, of both sides); samples moved between consumers; buffers that several producers write; frames
forwarded within a node."""
TAGS_PER_ROUTE = 5
SHARED_WRITE_MIN_BYTES = 1 << 16
"""Minimum size of a bucket of weights for its producers to write into one frame. Smaller ones are sent
separately."""


@dataclass(frozen=True)
class RouteSide:
    """One side of a route: the workers of a component."""

    mesh: DeviceMesh
    first_job_rank: int
    """The job rank of the component's rank 0; the others follow."""
    execute: str = "all"
    node_of: Callable[[int], int] = lambda rank: 0
    """Returns the node of a rank."""
    device_type: str = "cpu"
    group: str = ""
    is_restartable: bool = False
    """True if the group restarts alone after a failure."""

    def job_rank(self, rank: int) -> int:
        return self.first_job_rank + rank

    @property
    def job_ranks(self) -> range:
        return range(self.first_job_rank, self.first_job_rank + self.mesh.world_size)


@dataclass(frozen=True)
class RouteContext:
    """The facts from which a worker makes its end of a route."""

    route: Route
    producer: RouteSide
    consumer: RouteSide
    transport: DataPlane
    first_tag: int = 0

    @property
    def rank(self) -> int:
        """This worker's rank in the producing component."""
        return self.transport.job_rank - self.producer.first_job_rank

    @property
    def consumer_rank(self) -> int:
        """This worker's rank in the consuming component."""
        return self.transport.job_rank - self.consumer.first_job_rank

    @property
    def is_resumable(self) -> bool:
        """True if one of the two groups may restart while the other one waits."""
        sides = self.producer, self.consumer
        return self.producer.group != self.consumer.group and any(side.is_restartable for side in sides)

    # The paths of what several consumers get. It goes once to each node: on the producer's own node all of
    # them read the same memory, and to another node it goes to the first of them, which forwards it to the
    # others. If the producers may restart alone, each consumer receives from them itself, because only some
    # of the consumers may lack a step then.

    @property
    def _forwards(self) -> bool:
        return not (self.is_resumable and self.producer.is_restartable)

    def destinations(self, producer: int, ranks: Sequence[int]) -> list[list[int]]:
        """Returns the job ranks to which a producing rank sends what some consuming ranks get; those of one
        list read the same memory."""
        here = self.producer.node_of(producer)
        near, far = list[int](), dict[int, int]()
        for rank in ranks:
            node, job_rank = self.consumer.node_of(rank), self.consumer.job_rank(rank)
            if node == here:
                near.append(job_rank)
            else:
                far.setdefault(node if self._forwards else ~rank, job_rank)
        one_by_one = [[other] for other in far.values()]
        if near and self.transport.shares_memory(near):
            return [near, *one_by_one]
        return [*([other] for other in near), *one_by_one]

    def forwarding(self, producer: int, ranks: Sequence[int]) -> list[int]:
        """Returns those of the consuming ranks, as job ranks, that are on this rank's node and share what a
        producing rank sends from another node: the first of them receives and forwards it. Empty if this rank
        receives from the producer itself."""
        node = self.consumer.node_of(self.consumer_rank)
        if self.producer.node_of(producer) == node or not self._forwards:
            return []
        peers = [self.consumer.job_rank(peer) for peer in ranks if self.consumer.node_of(peer) == node]
        return peers if len(peers) > 1 else []

    def receive(self, producer: int, peers: Sequence[int]) -> Any:
        """Returns the next value of a producing rank, from itself or from the one of `peers` that forwards
        it. Raises `PeerLost`, and `BuffersHeld`."""
        transport, source = self.transport, self.producer.job_rank(producer)
        if not peers:
            return transport.receive_value(source, self.first_tag + VALUES)
        if peers[0] != transport.job_rank:
            return transport.receive_value(peers[0], self.first_tag + FORWARD)
        delivery = transport.receive(source, self.first_tag + VALUES)
        value = transport.decode(delivery, source)
        transport.forward(delivery, peers[1:], self.first_tag + FORWARD)
        return value


class StreamEnd:
    """The type of `END`."""


END = StreamEnd()
"""The value of a step in which a source has no more samples."""


class Received(NamedTuple):
    """The value that a rank received in one step."""

    value: Any
    """A `Batch` in sample order, a joined plain value, a stream of weights, or `END`."""
    step: StepHeader | None = None
    """For a batch, the headers of all producers and the partition of the samples; else None."""
    sent_step: int = 0
    """The step in which weights were sent."""

    @property
    def header(self) -> StepHeader:
        """The header of a batch."""
        assert self.step is not None
        return self.step
