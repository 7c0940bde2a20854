"""The data plane of a worker that outlives other groups: it waits for their next processes.

    plane.suspend(group)                        from now on, nothing is exchanged with the group
    with plane.turn.wanted(): plane.reopen(...) while the program waits, or runs code of a component
    plane.await_return(group, peer, tag)        waits until that has been done

The loss of a restartable group is no error. What the program waits for, here or in a collective of a
component, may depend on other workers that wait for that group. So another thread reopens its routes: at once
if the program waits or runs code of a component, else as soon as it does. The thread never waits for a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.backend import finish
from meshctl.runtime.transports.context import SLOTS, Context
from meshctl.runtime.transports.data_plane import NO_SLOT, DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.turn import Turn


class ReturningDataPlane(DataPlane):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._away: set[str] = set()
        """The groups of which a process has ended, until they are reopened."""
        self.turn: Turn = Turn(partial(finish, context.device))
        self._is_forced = False
        self._extra: dict[int, int] = {}

    # Groups that are away

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the other threads from changing which groups are away."""
        with self._lock:
            yield

    def is_away(self, group: str) -> bool:
        return group in self._away

    def suspend(self, group: str) -> None:
        """Ends all waits for a group, from any thread. They begin again once it is reopened."""
        with self._lock:
            self._away.add(group)
            self._notify()

    def fail(self, lost: PeerLost, also: int | None = None) -> None:
        if lost.job_rank is None or not self.returns(lost.job_rank):
            super().fail(lost, also)
            return
        self.suspend(self.context.group_of(lost.job_rank))
        if also is not None:
            self.fail(self.peer_lost(also, f"is gone, after {self.name_of(lost.job_rank)}"))

    def returns(self, job_rank: int) -> bool:
        """Returns whether the group of a job rank restarts alone after a loss."""
        return self.context.group_of(job_rank) in self.context.restartable

    def on_peer_ended(self, job_rank: int, how: str) -> None:
        if self.returns(job_rank) and not self.context.has_left(job_rank):
            self.fail(self.peer_lost(job_rank, how))
        else:
            super().on_peer_ended(job_rank, how)

    def check(self, peer: int, tag: int) -> None:
        if self.context.group_of(peer) in self._away:
            raise self.peer_lost(peer, "restarts", tag)
        super().check(peer, tag)

    def reopen(self, group: str, generation: int) -> None:
        with self._lock:
            super().reopen(group, generation)
            self._away.discard(group)
            self._notify()

    # Threads

    def alloc(self, nbytes: int) -> Tensor:
        with self.turn.lock:  # an endpoint may call it
            return super().alloc(nbytes)

    def close(self) -> None:
        with self.turn.held():
            super().close()

    # Waiting

    def await_return(self, group: str, peer: int, tag: int) -> None:
        """Waits until a group is reopened. `peer` and `tag` are those for which this process waits. Raises
        `PeerLost` for any other loss."""
        with self._lock:
            if group in self._away:
                self._wait_for(lambda: group not in self._away, peer, tag, lambda: None)

    def _wait(self, ready: Callable[[], bool], peer: int, tag: int) -> None:
        if ready():
            return
        group, generation = self.context.group_of(peer), self.generation_of(peer)

        def check() -> None:
            if group in self._away or self.generation_of(peer) != generation:
                raise self.peer_lost(peer, "restarts", tag)

        self._wait_for(ready, peer, tag, check)

    def _wait_for(self, ready: Callable[[], bool], peer: int, tag: int, check: Callable[[], None]) -> None:
        """Waits until `ready` returns true. `check` raises an exception if that can no longer happen. The
        caller uses the plane, and holds the lock once."""
        on_wait = self.context.on_wait
        on_wait(peer, tag)
        try:
            while True:
                check()
                if ready():
                    return
                if self.losses:
                    self.losses.check(self.job_rank if self.returns(peer) else peer, tag)
                self._await_change()
        finally:
            on_wait(-1, -1)

    def _await_change(self) -> None:
        """Waits for a message, or until another thread calls `notify`. Other threads use the plane
        meanwhile."""
        poller = self._poller
        self.turn.give()
        try:
            if poller is None:
                self._state.wait()
            else:
                self._unlocked(poller.wait)
        finally:
            self._unlocked(self.turn.take)
        if poller:
            self._unlocked(self.poll)  # only now, as another thread may have closed files

    def _unlocked(self, act: Callable[[], object]) -> None:
        self._lock.release()
        try:
            act()
        finally:
            self._lock.acquire()

    # Slots

    def allow(self, tag: int, frames: int) -> None:
        """Has further frames of a tag in flight for a while after a restart, beyond its slots."""
        self._extra[tag] = frames

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Sends beyond the slots of receivers, without waiting."""
        self._is_forced = True
        try:
            yield
        finally:
            self._is_forced = False

    def slots(self, tag: int) -> int:
        return super().slots(tag) + self._extra.get(tag, 0)

    def _await_slot(self, key: tuple[int, int]) -> None:
        if not self._is_forced:
            super()._await_slot(key)

    def check_slot(self, source: int, tag: int) -> None:
        most = (self._slots.get(tag, SLOTS) or SLOTS) + self._extra.get(tag, 0)
        is_tag = 0 <= tag < self.context.tag_count
        if not is_tag or len(self._inbox.get((source, tag), ())) >= most:
            raise ProtocolError(NO_SLOT.format(tag))

    def _take_slots(self, wanted: Sequence[tuple[int, int]]) -> None:
        for to, tag in wanted:
            if self.context.group_of(to) in self._away:
                raise self.peer_lost(to, "restarts", tag)
        super()._take_slots(wanted)
