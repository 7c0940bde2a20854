"""The paths of the parts of a route: which consumers read the same memory, and which consumer forwards a
part.

A part goes once to each node. On the producer's own node all consumers of the part read the same memory; to
any other node the frame goes to the first of the part's ranks there, which forwards it to the others. If the
producers may restart alone, each consumer receives from them itself, because only some of the consumers may
lack a step then.
"""

from __future__ import annotations

from functools import cache

from meshctl.runtime.routes.end import RouteContext
from meshctl.topology.consumers import ConsumerParts


class Paths:
    """The paths of one route, each computed when it is first needed."""

    def __init__(self, context: RouteContext, producers: tuple[int, ...], consumers: ConsumerParts) -> None:
        """`producers` are the ranks that send, in their order."""
        self._producer, self._consumer = context.producer, context.consumer
        self._transport = context.transport
        self._is_resumable = context.is_resumable
        self._forwards = not (context.is_resumable and context.producer.is_restartable)
        self._producers, self._consumers = producers, consumers
        self.destinations = cache(self._destinations)
        self.can_write_together = cache(self._can_write_together)
        self.forwarding = cache(self._forwarding)

    def _destinations(self, part: int, producer: int) -> list[list[int]]:
        """Returns the job ranks to which a producer sends a part; those of one list read the same memory."""
        here = self._node_of_producer(producer)
        near, far = list[int](), dict[int, int]()
        for rank in self._consumers.ranks[part]:
            node = self._consumer.node_of(rank)
            if node == here:
                near.append(self._consumer.job_rank(rank))
            else:
                far.setdefault(node if self._forwards else ~rank, self._consumer.job_rank(rank))
        one_by_one = [[other] for other in far.values()]
        if not near:
            return one_by_one
        if self._transport.shares_memory(near):
            return [near, *one_by_one]
        return [*([other] for other in near), *one_by_one]

    def _can_write_together(self, part: int, producers: tuple[int, ...]) -> bool:
        """Returns whether some producers, the leader of a part and all of its consumers are on one node and
        can use the same frame. Where a group may restart, each producer sends alone, also once more."""
        if self._is_resumable:
            return False
        writers, readers = {self._consumers.leaders[part], *producers}, self._consumers.ranks[part]
        nodes = {self._node_of_producer(writer) for writer in writers}
        nodes |= {self._consumer.node_of(rank) for rank in readers}
        job_ranks = [self._producer.job_rank(self._producers[writer]) for writer in writers]
        job_ranks += [self._consumer.job_rank(rank) for rank in readers]
        return len(nodes) == 1 and self._transport.shares_memory(job_ranks)

    def _forwarding(self, rank: int, part: int, producer: int) -> list[int]:
        """Returns the job ranks of a rank's node that share the frames of a producer on another node; the
        first of them receives and forwards. Empty if the rank receives from the producer itself."""
        node = self._consumer.node_of(rank)
        if self._node_of_producer(producer) == node or not self._forwards:
            return []
        peers = [peer for peer in self._consumers.ranks[part] if self._consumer.node_of(peer) == node]
        return [self._consumer.job_rank(peer) for peer in peers] if len(peers) > 1 else []

    def _node_of_producer(self, producer: int) -> int:
        return self._producer.node_of(self._producers[producer])
