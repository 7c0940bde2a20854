"""The ends of routes between a group that may restart alone and another one, which waits meanwhile.

    producers into the group    keep the values of the last steps, and send those again that it lacks
    consumers from the group    note the last step that they have received, and wait for the next ones
    the restarted group         runs again after the last step that all others have, and sends a step only to
                                those that lack it

A sync keeps copies of the last weights on their producers, so that the group begins with those that its first
step needs. All of this is decided by counts that a thread reads while the program computes
(`runtime.group_restarts`), so counts change under the lock of the data plane, and not while the group is
away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import VALUES, Received, RouteContext
from meshctl.runtime.routes.joins import copied
from meshctl.runtime.routes.weights import WeightChannel, Weights, gathered, local_of, row_of
from meshctl.runtime.transports.errors import PeerLost

NEVER = -1
"""The step of what has not happened."""
T = TypeVar("T")


class _Other:
    """The group at the other end of a route, which may restart, and what a producer keeps for its return."""

    def __init__(self, context: RouteContext, kept: int) -> None:
        """`kept` is the number of steps whose values a producer keeps."""
        is_producer = context.transport.job_rank in context.producer.job_ranks
        other = context.consumer if is_producer else context.producer
        self.plane = context.transport
        self.group, self.peer, self.tag = other.group, other.first_job_rank, context.first_tag + VALUES
        self.kept: deque[tuple[int, Any]] = deque(maxlen=kept)
        """The step of each value, and what is needed to send it again."""
        self.forgotten = NEVER
        """The last step whose value was sent and is no longer kept."""

    def keep(self, step: int, value: Any) -> None:
        """Keeps a value that is about to be sent, once the group is not away."""

        def change() -> None:
            if len(self.kept) == self.kept.maxlen:
                self.forgotten = self.kept[0][0]
            self.kept.append((step, value))

        while not self.note(change):
            pass

    def attempt(self, operation: Callable[[], T]) -> T | None:
        """Returns the result of an operation. Where the other group is lost meanwhile, waits for its return
        and returns None."""
        plane = self.plane
        if self.group not in plane.context.restartable:
            return operation()
        generation = plane.generation_of(self.peer)
        try:
            return operation()
        except PeerLost as lost:
            if lost.job_rank is None or plane.context.group_of(lost.job_rank) != self.group:
                raise
            with plane.lock:
                if plane.generation_of(self.peer) == generation:
                    plane.suspend(self.group)
            plane.await_return(self.group, self.peer, self.tag)
            return None

    def note(self, change: Callable[[], None]) -> bool:
        """Changes what is read when the other group restarts, and returns True. Returns False, after a wait,
        if the group is away."""
        plane = self.plane
        with plane.lock:
            if self.group not in plane.away:
                change()
                return True
        plane.await_return(self.group, self.peer, self.tag)
        return False


class ResumableChannel(Channel):
    """A data route that goes on after a restart of the group at its other end, or of this group."""

    def __init__(self, context: RouteContext, kept: int) -> None:
        """`kept` is the number of values that a producer keeps for consumers that may restart."""
        super().__init__(context)
        self.other = _Other(context, kept if context.consumer.is_restartable else 0)
        self.delivered = NEVER
        """The last step whose value this rank has received."""
        self._has: Mapping[int, int] = {}
        """Job rank of a consumer -> the last step that it has from an earlier generation of this group."""
        self._sending = NEVER

    @property
    def consumes(self) -> bool:
        return self._transport.job_rank in self._consumer.job_ranks

    # Sending

    def send(self, value: Any, step: int, weight: float = 1.0) -> bool:
        if self._me is None or not self.other.kept.maxlen:
            self._sending = step
            return (
                self.other.attempt(lambda: super(ResumableChannel, self).send(value, step, weight)) or False
            )
        own = self._describe(value, weight)
        kept = copied(value), self._gathered(own), own
        self._transport.turn.finish()  # another thread may send the copy
        self.other.keep(step, kept)
        self._sending = step
        return self.other.attempt(lambda: self._send_with([*kept[1]], own, value)) or False

    def _destinations(self, part: int) -> list[list[int]]:
        found = super()._destinations(part)
        if not self._has:
            return found
        lack = [[one for one in ranks if self._has.get(one, NEVER) < self._sending] for ranks in found]
        return [ranks for ranks in lack if ranks]

    # Receiving

    def receive(self, step: int) -> Received:
        while True:
            received = self.other.attempt(lambda: super(ResumableChannel, self).receive(step))
            if received is not None and self.other.note(partial(setattr, self, "delivered", step)):
                return received

    # Restarts

    def begin_after(self, generation: int, delivered: Mapping[int, int]) -> None:
        """Begins in a group that has restarted. `delivered` maps the job ranks of consumers to the last step
        that they have."""
        self._generation, self._has = generation, delivered

    def resume(self, generation: int, step: int) -> None:
        """Goes on after a restart of the other group, which has everything up to `step`."""
        self._generation = generation
        for kept, (value, table, own) in [*self.other.kept]:
            if kept > step:
                self._sending = kept
                self._send_with([*table], own, value)


class ResumableWeights(WeightChannel):
    """A sync into a group that may restart. Its producers keep copies of the weights of the last `lag` + 2
    syncs in host memory."""

    def __init__(self, context: RouteContext, *ends: Any, lag: int = 0, checksum: bool | None = None) -> None:
        super().__init__(context, *ends, lag=lag, checksum=checksum)
        self.other = _Other(context, lag + 2)

    def send(self, value: Weights | None, step: int) -> None:
        if value is None:
            super().send(value, step)
            return
        self.other.keep(step, {name: local_of(part).detach().cpu().clone() for name, part in value.items()})
        if self.other.attempt(lambda: [super(ResumableWeights, self).send(value, step)]) is None:
            self._unsent.clear()  # they were sent with those of the steps before
            self._local = {}

    def resume(self, generation: int, version: int) -> None:
        """Goes on after a restart of the consumers, which begin with the weights of the step `version`."""
        self._generation = generation
        running = self.last_sent, self._local, self._unsent
        for step, kept in dict(self.other.kept).items():  # the last ones of each step
            if step >= version:
                self.last_sent, self._local, self._unsent = step, kept, deque(self._sends)
                self._send_until(len(self._buckets))
        self.last_sent, self._local, self._unsent = running

    def begin_after(self, generation: int, step: int, versions: Sequence[int], rows: list[Any]) -> None:
        """Begins on a consumer of a group that has restarted after `step`. `versions` are the steps whose
        weights it will receive, first the one to begin with, and `rows` the layouts of all producers."""
        self._generation = generation
        assert self._wanted_of
        wanted = gathered(self._context, self._context.consumer.job_ranks, row_of(self._wanted_of()))
        self._begin(rows, [*wanted.values()])
        self._pending, self.last_sent = deque(versions), step
