"""A value from outside of a block: it is received once, and used in every pass."""

from __future__ import annotations

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.alignment import Assignment
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, Received
from meshctl.topology.modes import Route


class HeldInput:
    """A consumer's end of a route into a block."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._received: Received | None = None

    @property
    def route(self) -> Route:
        return self._channel.route

    @property
    def cuts_samples(self) -> bool:
        return self._channel.cuts_samples

    def begin(self, step: int) -> bool:
        """Receives the value of a step, and returns whether there is one: False where the stream has
        ended."""
        self._received = self._channel.receive(step)
        return self._received.value is not END

    def release(self) -> None:
        """Forgets the value, which is borrowed, at the end of the block."""
        self._received = None

    def receive(self, step: int) -> Received:
        assert self._received is not None
        return self._received

    def assignment(self, received: Received) -> Assignment:
        return self._channel.assignment(received)

    def aligned(self, received: Received, wanted: Assignment) -> Batch:
        return self._channel.aligned(received, wanted)
