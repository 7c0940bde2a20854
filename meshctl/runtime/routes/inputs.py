"""The arguments of a call: the values of all its inputs, aligned by sample id.

Values from outside of a block are received once, and used in every pass. So is the batch that a block cuts
into minibatches: the ranks of the called component then hold it, and exchange samples for each minibatch
among themselves, so its producers do not wait for the block. Every rank computes the minibatches alone, from
the ids of all samples, which it has received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch

from meshctl.plan.model import Block
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.alignment import Assignment, selected
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, Received
from meshctl.runtime.routes.joins import copied
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


InputEnd = Channel | HeldInput
"""A route's end that brings the values of one input stage."""


class _Value(NamedTuple):
    channel: InputEnd
    received: Received


class Arguments(NamedTuple):
    """The arguments of one call of an endpoint."""

    positional: list[Any]
    named: dict[str, Any]
    first: Batch | None
    """The first batch among the arguments, which determines the order and the shares of all inputs."""
    batches: Sequence[Batch]
    """All batches among the arguments."""


class Input(NamedTuple):
    """One parameter of a call."""

    parameter: str
    """Its name; empty for an argument that is passed by position."""
    channels: tuple[InputEnd, ...]
    """The ends of the routes that bring its values. The columns of several stages are joined."""


def received_arguments(inputs: Sequence[Input], step: int) -> Arguments | None:
    """Receives all inputs of a stage on this rank. Returns the arguments of a step's call, or None if a
    stream has ended."""
    received = [[_Value(c, c.receive(step)) for c in each.channels] for each in inputs]
    values = [value for some in received for value in some]
    if any(value.received.value is END for value in values):
        return None
    leading = next((value for value in values if isinstance(value.received.value, Batch)), None)
    positional, named = list[Any](), dict[str, Any]()
    batches: list[Batch] = []
    for each, some in zip(inputs, received, strict=True):
        argument = _joined(some, leading)
        if isinstance(argument, Batch):
            batches.append(argument)
        if each.parameter:
            named[each.parameter] = argument
        else:
            positional.append(argument)
    return Arguments(positional, named, batches[0] if batches else None, batches)


def _joined(values: Sequence[_Value], leading: _Value | None) -> Any:
    """Returns one parameter's value: the columns of all its stages, on the samples of the leading input."""
    if len(values) == 1:
        return _aligned(values[0], leading)
    if not all(isinstance(value.received.value, Batch) for value in values):
        kinds = ", ".join(
            f"`{value.channel.route.source}` returned a {type(value.received.value).__name__}"
            for value in values
        )
        raise RouteError(f"a list of stages joins batches: {kinds}")
    whole, *others = [_aligned(value, leading) for value in values]
    for value, other in zip(values[1:], others, strict=True):
        if twice := [name for name in other.names if name in whole]:
            first = next(one.channel.route.source for one in values if twice[0] in one.received.value)
            both = f"`{first}` and `{value.channel.route.source}`"
            given = f"column {twice[0]!r} is given twice, by the stages {both}"
            raise RouteError(f"{given}: take one that has all columns, or return only the new ones")
        whole = whole.joined(other)
    return whole


def _aligned(value: _Value, leading: _Value | None) -> Any:
    batch = value.received.value
    if leading is None or value is leading or not isinstance(batch, Batch):
        return batch
    first, own = leading.channel.route, value.channel.route
    is_whole = leading.channel.cuts_samples and not value.channel.cuts_samples
    if is_whole and not value.channel.may_have_more:
        return batch
    try:
        wanted = leading.channel.assignment(leading.received)
        if is_whole:
            return selected(batch, wanted)
        batch = value.channel.aligned(value.received, wanted)
    except RouteError as error:
        raise RouteError(
            f"`{first.source}` and `{own.source}` do not have the same samples: {error}"
        ) from error
    batch.most = leading.received.value.most
    return batch
