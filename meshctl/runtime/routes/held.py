"""Values from outside of a block: they are received once, and used in every pass.

The batch that a block cuts into minibatches is received once, too. The ranks of the called component then
hold it, and exchange samples for each minibatch among themselves, so its producers do not wait for the block.
Every rank computes the minibatches alone, from the ids of all samples, which it has received.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

import torch

from meshctl.plan.model import Block
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.kept_values import copied
from meshctl.runtime.routes.alignment import Assignment
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, Received
from meshctl.topology.modes import Route
from meshctl.topology.partition import group_bounds, minibatches
from meshctl.topology.samples import RouteError


class HeldInput:
    """A consumer's end of a route into a block."""

    def __init__(self, channel: Channel, *, may_have_more: bool = False) -> None:
        """`may_have_more` is whether a batch may have samples that the minibatch of a pass does not have."""
        self._channel, self.may_have_more = channel, may_have_more
        self._received: Received | None = None

    @property
    def route(self) -> Route:
        return self._channel.route

    @property
    def cuts_samples(self) -> bool:
        return self._channel.cuts_samples

    def begin(self, step: int) -> None:
        """Receives the value of a step."""
        self._received = self._channel.receive(step)

    def begin_round(self, number: int) -> None:
        """Prepares for the first pass of a round; rounds count from 1."""

    def release(self) -> None:
        """Forgets the value, which is borrowed, at the end of the block."""
        self._received = None

    def receive(self, step: int) -> Received:
        """Returns the value for a pass. Each pass has a copy of what is no batch, which it may change."""
        assert self._received is not None
        value = self._received.value
        return self._received if isinstance(value, Batch) else Received(copied(value))

    def assignment(self, received: Received) -> Assignment:
        return self._channel.assignment(received)

    def aligned(self, received: Received, wanted: Assignment) -> Batch:
        return self._channel.aligned(received, wanted, may_have_more=self.may_have_more)


class MinibatchInput(HeldInput):
    """A consumer's end of a route that brings the batch which a block cuts into minibatches. It has a
    minibatch in each pass, and then END."""

    def __init__(self, channel: Channel, block: Block) -> None:
        super().__init__(channel)
        self._block = block
        self._step = 0
        self._left: deque[list[int]] = deque()
        """The minibatches of this round that are still to come, as positions in sample order."""

    def begin(self, step: int) -> None:
        self._step = step
        super().begin(step)
        value = super().receive(step).value
        if not isinstance(value, Batch):
            raise RouteError(
                f"block `{self._block.name}` cuts a Batch into minibatches, and `{self._block.over}` "
                f"returned a {type(value).__name__}"
            )

    def release(self) -> None:
        super().release()
        self._left.clear()

    def begin_round(self, number: int) -> None:
        table = super().receive(self._step).header.table
        bounds = group_bounds(table, table.group_depth)
        words = repr((self._block.seed, self._step, number)).encode()
        seed = int.from_bytes(blake2b(words, digest_size=8).digest(), "big") >> 1
        order = torch.randperm(len(bounds) - 1, generator=torch.Generator().manual_seed(seed))
        self._left.extend(minibatches(bounds, order.tolist(), self._block.size))

    def receive(self, step: int) -> Received:
        if not self._left:
            return Received(END)
        return self._channel.selected(super().receive(step), self._left.popleft())
