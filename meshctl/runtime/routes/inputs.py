"""The arguments of a call: the values of all its inputs, aligned by sample id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.alignment import selected
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, Received
from meshctl.runtime.routes.held import HeldInput
from meshctl.topology.samples import RouteError

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


@dataclass(frozen=True)
class Input:
    """One parameter of a call."""

    parameter: str
    """Its name; empty for an argument that is passed by position."""
    channels: tuple[InputEnd, ...]
    """The ends of the routes that bring its values. The columns of several stages are joined."""


@dataclass(frozen=True)
class Inputs:
    """All inputs of a stage on this rank."""

    inputs: tuple[Input, ...]

    def receive(self, step: int) -> Arguments | None:
        """Returns the arguments of a step's call, or None if a stream has ended."""
        received = [[_Value(c, c.receive(step)) for c in each.channels] for each in self.inputs]
        values = [value for some in received for value in some]
        if any(value.received.value is END for value in values):
            return None
        leading = next((value for value in values if isinstance(value.received.value, Batch)), None)
        positional, named = list[Any](), dict[str, Any]()
        batches: list[Batch] = []
        for each, some in zip(self.inputs, received, strict=True):
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
