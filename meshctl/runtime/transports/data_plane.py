"""The data plane of one worker: slots, credits and waiting, on top of several transports.

A frame (uint8 `[n]`) travels from one job rank to others under a tag. A tag is a number that both ends know;
frames of one tag between two job ranks arrive in order. `lease` returns memory for a frame as soon as every
receiver has a free slot of the tag; `deliver` sends it, whatever the receivers are doing. A receiver's
`receive` returns the slot as a credit. So the lead of one group over another is bounded, and no order of
stages can deadlock.

A tensor that its receivers can read in place travels out of band, beside the frame (`Transport.accepts`).

    memory    threads of one process            the tensor itself
    local     processes of one node             a header over a unix socket; the frame is in shared memory
    tcp       processes of different nodes      the bytes over a connection, into warm memory

Job ranks belong to peer groups. A loss concerns one peer group: receivers that wait for other groups go on.
`reopen` clears the loss and raises the generation of the group; connections and frames of an older
generation are refused.

The loss of a group that restarts alone is no error: the group is away until it is reopened.

    plane.suspend(group)                        from now on, nothing is exchanged with the group
    with plane.turn.wanted(): plane.reopen(...) while the program waits, or runs code of a component
    plane.await_return(group, peer, tag)        waits until that has been done

What the program waits for, here or in a collective of a component, may depend on other workers that wait for
that group. So another thread reopens its routes: at once if the program waits or runs code of a component,
else as soon as it does. The thread never waits for a peer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from torch import Tensor

from meshctl.runtime.devices.backend import finish
from meshctl.runtime.trace import Tracer
from meshctl.runtime.transports.buffers.frames import Frame, FrameError, tensor_of
from meshctl.runtime.transports.buffers.memcpy import copy
from meshctl.runtime.transports.context import SLOTS, Context
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.progress import Poller
from meshctl.runtime.transports.transport import Delivery, Lease, Loopback, Transport
from meshctl.runtime.transports.turn import DataPlaneLock

MAX_DIRECT = 4
"""The largest number of ranks that all-gather in one round, each by a message to all others. Each further
round waits for the one before it."""


class DataPlane:
    trace = Tracer()

    def __init__(self, context: Context) -> None:
        self.context, self.job_rank = context, context.job_rank
        self.turn = DataPlaneLock()
        if context.restartable:  # another thread may use the plane
            self.turn.finish = partial(finish, context.device)
        self._slots, self._generations = dict(context.slots), dict(context.generations)
        self.away: set[str] = set()
        """The groups of which a process has ended, until they are reopened."""
        self.is_forced = False
        """True while frames are sent beyond the slots of receivers, without waiting."""
        self._transport_to: dict[int, Transport] = {}
        self.transports: tuple[Transport, ...] = ()
        self._loopback, self.lock = Loopback(), threading.RLock()
        self._state, self._waiting = threading.Condition(self.lock), 0
        self._poller: Poller | None = None
        """Reads the files of transports; None where they have threads that do."""
        self._inbox: dict[tuple[int, int], deque[Delivery]] = {}
        self._credits: dict[tuple[int, int], float] = {}
        """(job rank, tag) -> the free slots, infinite where there is no bound."""
        self.losses = Losses(context)
        make = context.make_transfers
        self.transfers = make(self._on_transfers_broken) if make else None
        os.register_at_fork(after_in_child=partial(_forget, weakref.ref(self)))

    def add(self, job_ranks: Iterable[int], transport: Transport) -> None:
        """Registers the transport to some job ranks; the first registration of a job rank holds."""
        self._transport_to = {**dict.fromkeys(job_ranks, transport), **self._transport_to}
        self.transports = tuple(dict.fromkeys(self._transport_to.values()))

    def reserve(self, tag: int, slots: int) -> None:
        """Sets the slots of a tag, before its first frame. 0 means no bound, for a tag whose two ends take
        turns anyway."""
        self._slots[tag] = slots

    def slots(self, tag: int) -> int:
        """Returns how many frames of a tag may be in flight between two job ranks."""
        return self._slots.get(tag, SLOTS)

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Sends beyond the slots of receivers, without waiting."""
        self.is_forced = True
        try:
            yield
        finally:
            self.is_forced = False

    def transport_to(self, job_rank: int) -> Transport:
        return self._transport_to.get(job_rank, self._loopback)

    def shares_memory(self, job_ranks: Iterable[int]) -> bool:
        """Returns whether this job rank and others can all write to one frame."""
        return all(self.transport_to(other).shares_memory for other in job_ranks if other != self.job_rank)

    def name_of(self, job_rank: int) -> str:
        return self.context.name_of(job_rank)

    @property
    def near(self) -> Transport:
        """The transport to the processes of this node, which owns the memory that they share."""
        return self.transport_to(self.job_rank)

    # Memory

    def alloc(self, nbytes: int) -> Tensor:
        """Returns uninitialized uint8 `[nbytes]`. Receivers that can read it in place get it without a
        copy."""
        with self.turn.lock:  # an endpoint may call it
            return self.near.alloc(nbytes)

    # Sending

    def frame(self, to: Sequence[int], value: Any, *, is_final: bool = False) -> Frame:
        """Returns the layout of a value as a frame to some job ranks, all of one transport. `is_final`:
        nobody writes to the value's tensors any more. Raises `FrameError`."""
        return Frame(value, partial(self._transport_of(to).accepts, to, is_final))

    def lease(self, to: Sequence[int], tag: int, nbytes: int, out_of_band: Sequence[Tensor] = ()) -> Lease:
        """Returns memory for a frame to some job ranks, all of one transport. Waits for a slot of each.
        Raises `PeerLost`, `BuffersHeld` and `OutOfMemory`."""
        self._take_slots([(other, tag) for other in to])
        return self._transport_of(to).lease(to, tag, nbytes, out_of_band)

    def lay_out(
        self, to: Sequence[int], tag: int, frame: Frame, writers: Sequence[int], writer_tag: int
    ) -> Lease:
        """Leases memory for a frame and writes it, before it is delivered, with the help of other job ranks:
        they receive it under `writer_tag`, and write to it. Waits for a slot of each. Raises as `lease`."""
        self._take_slots([(other, tag) for other in to] + [(other, writer_tag) for other in writers])
        lease = self._transport_of(to).lease(to, tag, frame.nbytes)
        frame.write(lease.frame)
        for writer in writers:
            self.transport_to(writer).post(writer, writer_tag, lease, write=True)
        return lease

    def deliver(self, lease: Lease) -> None:
        """Sends a leased frame. Its memory belongs to the receivers from then on."""
        begin, transport = perf_counter(), self._transport_of(lease.to)
        for receiver in lease.to:
            if receiver == self.job_rank:
                own = transport.own_delivery(lease)
                self.on_message(receiver, lease.tag, own.frame, own.out_of_band)
            else:
                transport.post(receiver, lease.tag, lease)
        self._trace_frame("to", lease.to, lease.tag, lease.nbytes, begin)

    def forward(self, delivery: Delivery, to: Sequence[int], tag: int) -> None:
        """Sends a received frame to others. Raises `FrameError`."""
        if delivery.out_of_band:
            self.send(to, tag, self.frame(to, delivery.value()))
            return
        lease = self.lease(to, tag, len(delivery.frame))
        copy(lease.frame, tensor_of(delivery.frame))
        self.deliver(lease)

    def send(self, to: int | Sequence[int], tag: int, frame: Frame) -> None:
        """Sends a frame, whose tensors may change afterwards. Raises what `lease` raises."""
        receivers = (to,) if isinstance(to, int) else tuple(to)
        transport = self._transport_of(receivers)
        if transport.needs_no_lease(receivers, frame):
            begin = perf_counter()
            self._take_slots([(receiver, tag) for receiver in receivers])
            transport.post_frame(receivers, tag, frame)
            self._trace_frame("to", receivers, tag, frame.nbytes, begin)
        else:
            lease = self.lease(receivers, tag, frame.nbytes, frame.out_of_band)
            frame.write(lease.frame)
            self.deliver(lease)

    def _transport_of(self, job_ranks: Sequence[int]) -> Transport:
        """Returns the transport that reaches all of some job ranks."""
        for other in job_ranks:
            if other != self.job_rank:
                return self.transport_to(other)
        return self.transport_to(self.job_rank)

    def _take_slots(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Takes a slot of each (job rank, tag); none at all where the wait for one of them fails."""
        credits = self._credits
        if self.away:
            for to, tag in wanted:
                if self.context.group_of(to) in self.away:
                    raise self.peer_lost(to, "restarts", tag)
        with self.lock:
            for key in wanted:
                if credits.get(key, 0) <= 0 and not self._has_slot(key):
                    self._await_slot(key)
            for key in wanted:
                credits[key] -= 1

    def _has_slot(self, key: tuple[int, int]) -> bool:
        """Returns whether a slot of (job rank, tag) is free."""
        credits, (to, tag) = self._credits, key
        if key not in credits:
            credits[key] = inf if to == self.job_rank else self._slots.get(tag, SLOTS) or inf
        return credits[key] > 0

    def _await_slot(self, key: tuple[int, int]) -> None:
        if self.is_forced:
            return
        begin = perf_counter()
        self._wait(partial(self._has_slot, key), *key)
        self.trace.add("wait", f"free slot of {self.name_of(key[0])}", begin, perf_counter())

    def _trace_frame(self, side: str, peers: Sequence[int], tag: int, nbytes: int, begin: float) -> None:
        """Records the sending of a frame `to` peers, or its receipt `from` one."""
        if self.trace.is_on:
            route = self.context.route_of(tag) or "comparison of peers"
            facts = {side: ", ".join(map(self.name_of, peers)), "bytes": nbytes}
            verb = "send" if side == "to" else "receive"
            self.trace.add("frame", f"{verb} {route}", begin, perf_counter(), facts)

    # Receiving

    def receive_value(self, source: int, tag: int) -> Any:
        """Returns the next value of a tag. Raises `PeerLost`, also for a malformed frame."""
        return self.decode(self.receive(source, tag), source)

    def decode(self, delivery: Delivery, source: int) -> Any:
        """Returns the value of a delivery. Raises `PeerLost` for a malformed frame."""
        try:
            return delivery.value(self.context.device)
        except FrameError as error:
            raise self.peer_lost(source, f"sent a malformed frame: {error}") from None

    def receive(self, source: int, tag: int) -> Delivery:
        """Returns the next delivery of a tag. Raises `PeerLost`."""
        begin, queue = perf_counter(), self._queue(source, tag)
        if not queue or not queue[0].is_complete:
            self.wait_until(lambda: bool(queue) and queue[0].is_complete, source, tag)
        delivery = queue.popleft()
        if source != self.job_rank and self._slots.get(tag, SLOTS):
            self.transport_to(source).credit(source, tag)
        self._trace_frame("from", [source], tag, delivery.nbytes, begin)
        return delivery

    def allgather(self, job_ranks: Sequence[int], me: int, tag: int, row: bytes) -> list[bytes]:
        """Returns the rows of all `job_ranks`, in their order. All of them call it; `me` is the index of
        the caller.

        Among more than `MAX_DIRECT` ranks this is Bruck's algorithm: in each round a rank sends all rows that
        it has to the rank `distance` before it. No rank ends a call before every rank has begun it, so at
        most two calls are in flight and the tag needs no credits.
        """
        self.reserve(tag, 0)
        count, rows, distance = len(job_ranks), [row], 1
        if count <= MAX_DIRECT:
            others = [other for other in job_ranks if other != job_ranks[me]]
            for other in others:
                self.send(other, tag, Frame(row))
            received = {other: self.receive_value(other, tag) for other in others}
            return [received.get(other, row) for other in job_ranks]
        while distance < count:
            sent = rows[: min(distance, count - distance)]
            self.send(job_ranks[(me - distance) % count], tag, Frame(sent))
            rows += self.receive_value(job_ranks[(me + distance) % count], tag)
            distance *= 2
        return [rows[(index - me) % count] for index in range(count)]

    def _queue(self, source: int, tag: int) -> deque[Delivery]:
        """Returns the queue of a tag. `setdefault` is atomic, so threads that ask first get the same one."""
        return self._inbox.setdefault((source, tag), deque())

    # Called by transports

    def on_message(
        self,
        source: int,
        tag: int,
        frame: Tensor | bytes,
        out_of_band: Sequence[Tensor | int] = (),
        clear_to_send: Callable[[], None] = lambda: None,
        generation: int | None = None,
    ) -> None:
        """Queues a received frame; called on any thread. An out-of-band tensor that a transfer brings is
        given as its size in bytes, and `clear_to_send` tells its sender to begin. A frame of another
        `generation` than the source's current one is dropped."""
        with self.lock:
            if generation is not None and generation != self.generation_of(source):
                return
            self._queue(source, tag).append(self._delivery(source, frame, out_of_band, clear_to_send))
            self._notify()

    def on_credit(self, source: int, tag: int, generation: int | None = None) -> None:
        """Counts a slot that a receiver has returned; called on any thread. `generation` as in
        `on_message`."""
        with self.lock:
            if generation is not None and generation != self.generation_of(source):
                return
            self._credits[source, tag] = self._credits.get((source, tag), 0) + 1
            self._notify()

    def _delivery(
        self,
        source: int,
        frame: Tensor | bytes,
        out_of_band: Sequence[Tensor | int],
        clear_to_send: Callable[[], None],
    ) -> Delivery:
        sizes = [one for one in out_of_band if isinstance(one, int)]
        delivery = Delivery(frame, [one for one in out_of_band if isinstance(one, Tensor)], not sizes)

        def on_received(tensors: list[Tensor]) -> None:
            received = iter(tensors)
            delivery.out_of_band = [next(received) if isinstance(one, int) else one for one in out_of_band]
            with self.lock:
                delivery.is_complete = True
                self._notify()

        if sizes and self.transfers:
            self.transfers.expect(source, sizes, clear_to_send, on_received)
        return delivery

    def _on_transfers_broken(self, job_rank: int, error: Exception) -> None:
        self.fail(self.peer_lost(job_rank, f"broke off: {error}"))

    # Waiting

    def add_file(self, file: int, act: Callable[[], object]) -> None:
        """Has every wait call `act` when the file is readable."""
        self._poller = self._poller or Poller()
        self._poller.add(file, act)

    def remove_file(self, file: int) -> None:
        if self._poller:
            self._poller.remove(file)

    def poll(self, seconds: float = 0.0) -> bool:
        """Handles a message of each peer; where there is none, waits up to `seconds`. Returns whether there
        was one."""
        return self._poller is not None and self._poller.poll(seconds)

    def notify(self) -> None:
        """Wakes every wait, to check its condition again. From any thread."""
        with self.lock:
            self._notify()

    def wait_until(self, ready: Callable[[], bool], peer: int | None = None, tag: int = -1) -> None:
        """Waits for a condition that depends on what a peer does under a tag; without a peer, on all of them.
        Raises `PeerLost`."""
        with self.lock:
            self._wait(ready, self.job_rank if peer is None else peer, tag)

    def _notify(self) -> None:
        """The caller holds the lock."""
        if self._poller is None:
            self._state.notify_all()
        elif self._waiting:
            self._poller.wake()

    def await_return(self, group: str, peer: int, tag: int) -> None:
        """Waits until a group is reopened. `peer` and `tag` are those for which this process waits. Raises
        `PeerLost` for any other loss."""
        with self.lock:
            if group in self.away:
                self._wait_for(lambda: group not in self.away, lambda: False, peer, tag)

    def _wait(self, ready: Callable[[], bool], peer: int, tag: int) -> None:
        """Waits until `ready` returns true, which depends on what a peer does under a tag. The caller uses
        the plane, and holds the lock once. Raises `PeerLost`, also where the peer's group restarts."""
        if ready():
            return
        group, generation = self.context.group_of(peer), self.generation_of(peer)
        self._wait_for(ready, lambda: group in self.away or self.generation_of(peer) != generation, peer, tag)

    def _wait_for(self, ready: Callable[[], bool], is_void: Callable[[], bool], peer: int, tag: int) -> None:
        on_wait = self.context.on_wait
        on_wait(peer, tag)
        while True:
            if is_void():
                on_wait(-1, -1)
                raise self.peer_lost(peer, "restarts", tag)
            if ready():
                on_wait(-1, -1)
                return
            if self.losses:
                self.losses.check(self.job_rank if self.returns(peer) else peer, tag)
            self._await_change()

    def _await_change(self) -> None:
        """Waits for a message, or until another thread calls `notify`. Other threads use the plane
        meanwhile."""
        poller = self._poller
        self._waiting += 1
        has_turn = self.turn.give()
        try:
            if poller is None:
                self._state.wait()
            else:
                self._unlocked(poller.wait)
        finally:
            self._waiting -= 1
            if has_turn:
                self._unlocked(self.turn.take)
        self._unlocked(self.poll)  # only now, as another thread may have closed files

    def _unlocked(self, act: Callable[[], object]) -> None:
        self.lock.release()
        try:
            act()
        finally:
            self.lock.acquire()

    # Losses

    def check(self, peer: int, tag: int) -> None:
        """Raises `PeerLost` if a member of the peer's group is lost; for this job rank, of any group."""
        if self.context.group_of(peer) in self.away:
            raise self.peer_lost(peer, "restarts", tag)
        self.losses.check(peer, tag)

    def returns(self, job_rank: int) -> bool:
        """Returns whether the group of a job rank restarts alone after a loss."""
        return self.context.group_of(job_rank) in self.context.restartable

    def suspend(self, group: str) -> None:
        """Ends all waits for a group, from any thread. They begin again once it is reopened."""
        with self.lock:
            self.away.add(group)
            self._notify()

    def fail(self, lost: PeerLost, also: int | None = None) -> None:
        """Records a loss for the peer group of the lost job rank, or for all groups where it names none.
        `also` is a job rank whose group shares the loss. A group that restarts alone is away instead."""
        if lost.job_rank is not None and self.returns(lost.job_rank):
            self.suspend(self.context.group_of(lost.job_rank))
            if also is not None:
                self.fail(self.peer_lost(also, f"is gone, after {self.name_of(lost.job_rank)}"))
            return
        with self.lock:
            self.losses.add(lost, also)
            self._notify()

    def on_peer_ended(self, job_rank: int, how: str) -> None:
        """Records the end of a job rank: only waits for this job rank fail."""
        if self.returns(job_rank) and not self.context.has_left(job_rank):
            self.fail(self.peer_lost(job_rank, how))
            return
        with self.lock:
            self.losses.ended.setdefault(job_rank, how)
            self._notify()

    def on_peer_lost(self, lost: int, announcer: int) -> None:
        """Records that the job rank `lost` is lost. The peer `announcer` says so, and ends because of it."""
        self.fail(self.peer_lost(lost, f"is lost, as {self.name_of(announcer)} reported"), announcer)

    def announce_loss(self, lost: PeerLost) -> None:
        """Informs all connected peers that this job rank ends because another one is lost."""
        if lost.job_rank is not None:
            for transport in self.transports:
                transport.announce_loss(lost.job_rank)

    def peer_lost(self, job_rank: int, how: str, tag: int = -1) -> PeerLost:
        """Returns the error for a lost peer. Its message is the peer's name followed by `how`; `tag` is the
        one under which this process waits for the peer."""
        return self.context.peer_lost(job_rank, how, tag)

    def queued(self, source: int, tag: int) -> list[Delivery]:
        """Returns the deliveries of a tag that have arrived and that the program has not taken yet."""
        return [*self._inbox.get((source, tag), ())]

    # Generations

    def generation_of(self, job_rank: int) -> int:
        """Returns the current generation of the peer group of a job rank, to compare with that of a message
        from it."""
        return self._generations.get(self.context.group_of(job_rank), 0)

    def reopen(self, group: str, generation: int) -> None:
        """Prepares for the restarted processes of a peer group. The group no longer counts as lost, the
        connections to it are closed, and the messages of its old processes are discarded. Later messages of
        the old generation are rejected. The transports `connect` again afterwards."""
        if generation <= self._generations.get(group, 0):
            raise ValueError(f"generation {generation} of `{group}` is not newer than the current one")
        group_of, others = self.context.group_of, self._transport_to.keys() - {self.job_rank}
        members = [rank for rank in others if group_of(rank) == group]
        with self.lock:
            self._generations[group] = generation
            self.losses.forget(group, members)
            for transport in self.transports:
                transport.reopen([rank for rank in members if self.transport_to(rank) is transport])
            for key in [key for key in self._inbox if key[0] in members]:
                self._inbox[key].clear()
            for key in [key for key in self._credits if key[0] in members]:
                del self._credits[key]
            self.away.discard(group)
            self._notify()

    def close(self) -> None:
        """Says goodbye after the last frame, waits for the goodbyes of all peers and releases everything.
        Raises `PeerLost`."""
        with self.turn.held():
            try:
                for transport in self.transports:
                    transport.leave()
                for transport in self.transports:
                    transport.close()
            finally:
                self._close_local()

    def release(self) -> None:
        """Releases everything without waiting for peers."""
        for transport in self.transports:
            transport.release()
        self._close_local()

    def _close_local(self) -> None:
        if self.transfers:
            self.transfers.close()
        with self.lock:
            poller, self._poller = self._poller, None
        if poller:
            poller.close()


def _forget(data_plane: weakref.ref[DataPlane]) -> None:
    """Closes the connections in a forked child, such as a data loader's, which must not send on them."""
    if found := data_plane():
        for transport in found.transports:
            transport.forget()


# Parts of a data plane


class Losses:
    """The peers that are lost or have ended. A loss concerns one peer group, and an end one job rank."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_group: dict[str | None, PeerLost] = {}
        """Peer group -> its loss; under None a loss that concerns all groups."""
        self.ended: dict[int, str] = {}
        """Job ranks that have ended, and how."""

    def __bool__(self) -> bool:
        return bool(self._by_group or self.ended)

    def __iter__(self) -> Iterator[PeerLost]:
        """Yields the losses, one per peer group."""
        return iter([*self._by_group.values()])

    def check(self, peer: int, tag: int) -> None:
        """Implements `DataPlane.check`."""
        if losses := self._by_group:
            loss = losses.get(None)
            if loss is None and peer == self._context.job_rank:
                loss = next(iter(losses.values()))
            elif loss is None:
                loss = losses.get(self._context.group_of(peer))
            if loss:
                raise PeerLost(loss.how, loss.job_rank, self._context.route_of(tag)) from loss
        if peer in self.ended:
            raise self._context.peer_lost(peer, self.ended[peer], tag)

    def add(self, lost: PeerLost, also: int | None = None) -> None:
        """Records the first loss of a peer group, or of all groups where it names no job rank. `also` is a
        job rank whose group shares the loss."""
        group_of = self._context.group_of
        groups: set[str | None] = {None if lost.job_rank is None else group_of(lost.job_rank)}
        if also is not None:
            groups.add(group_of(also))
        for group in groups:
            self._by_group.setdefault(group, lost)

    def forget(self, group: str, members: Iterable[int]) -> None:
        """Clears the loss of a peer group, and the ends of its members."""
        self._by_group.pop(group, None)
        for job_rank in members:
            self.ended.pop(job_rank, None)
