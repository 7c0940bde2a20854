"""How frames get from one worker to another: slots, credits and waiting, over ways of which each is a file of
its own.

A transport carries frames (uint8 tensors) between places, in lanes. A lane is a number that both ends know;
frames of one lane between two places come in order. `lend` gives memory to write a frame to, as soon as a
slot of the lane is free at every place that it goes to; `deliver` sends it, whatever its receivers are doing.
A receiver's `receive` gives the slot back, as a credit. So what a group is ahead of another is bounded, and
no order of stages can deadlock.

Tensors that lie already where they will be read need no place in a frame: they go beside it, as `hands_over`
says.

A `Way` says where that memory is, how a message leaves (`post`), and calls `arrived` when one has come:

    memory    threads of one process              the tensor itself
    local     processes of one node               a header over a unix socket; the frame lies in memory that
              both map
    tcp       processes of different nodes        the bytes over a connection, into memory that was touched
              before

Tensors that lie on devices go beside frames, too: who can reads them there (`devices.ondevice`), and
`Transfers` bring them to the others.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from meshctl.runtime.transports.buffers.frames import Frame, FrameError, unpack
from meshctl.runtime.transports.buffers.memcpy import copy
from meshctl.runtime.transports.poller import Watch

_NOWHERE = torch.empty(0, dtype=torch.uint8)
SLOTS = 2
"""Of a lane that says nothing else; and where both ends take turns, the most that can be on their way."""
UNBOUND = 1 << 31
"""Slots of a lane that has as many as anybody needs."""


class PeerLost(ConnectionError):
    """A peer is gone, or never came: the fault is elsewhere."""

    def __init__(self, how: str, place: int | None = None, route: str = "") -> None:
        """`place` is the peer's, `route` the one on which it was waited for, where these are known."""
        super().__init__(f"{how}, and `{route}` waits for it" if route else how)
        self.how, self.place = how, place


class WayError(ConnectionError):
    """Workers that cannot reach one another as they were started; the message says what to change."""


class Dropped(Exception):
    """The step in which somebody waits is one of those that the end of the run drops."""


class Malformed(ValueError):
    """A message that no peer sends."""


class Full(Exception):
    """There is no memory for what is sent; the message says for which route."""


class Held(Exception):
    """A receiver keeps the memory of what it was sent, and gives nothing back."""


class Loan(NamedTuple):
    """Memory for one frame, until it is delivered."""

    to: tuple[int, ...]
    lane: int
    frame: Tensor
    """uint8 `[n]`."""
    beside: Sequence[Tensor] = ()
    """What goes with it as it lies."""
    kept: Any = None
    """What the way knows of it."""
    inline: bytes = b""
    """The frame itself, where it is in no memory of its own."""


@dataclass(eq=False, slots=True)
class Delivery:
    """What came: a frame, and what came beside it."""

    frame: Tensor | bytes
    """uint8 `[n]`; a small one may come as bytes."""
    beside: Sequence[Tensor] = ()
    """uint8 `[n]` each."""
    whole: bool = True
    """Whether all of it is there: tensors may still be on their way from one device to another."""

    def value(self, device: torch.device | None = None) -> Any:
        """What lay on a device is put on this one. Raises `FrameError`."""
        return unpack(self.frame, self.beside, device)


class Transfers(Protocol):
    """What brings tensors from one device to another (`nccl.PairTransfers`)."""

    def send(self, to: int, tensors: Sequence[Tensor]) -> None: ...
    def expect(
        self,
        source: int,
        sizes: Sequence[int],
        come: Callable[[], None],
        arrived: Callable[[list[Tensor]], None],
    ) -> None: ...
    def come(self, to: int) -> None: ...
    def close(self) -> None: ...


class Way:
    """How messages reach some places."""

    shares_memory = False
    """Whether several places may write one frame, each a part of it."""
    inline = 0
    """Bytes of a frame that is posted as bytes, in no memory of its own."""

    def alloc(self, nbytes: int) -> Tensor | None:
        """uint8 `[nbytes]` which others can read where it lies; none where there is no such memory."""
        return None

    def hands_over(self, to: Sequence[int], lent: bool, tensor: Tensor) -> bool:
        """Whether a tensor can go to some places beside a frame; `lent` if nobody writes to it any more, so
        that they may read it as it lies."""
        return False

    def lies_mappable(self, tensor: Tensor) -> bool:
        """Whether a tensor that is handed over begins where `joined` can begin with it."""
        return False

    def joined(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Tensors that were handed over as one, along dim 0, without a copy; none where that cannot be."""
        return None

    def lend(self, to: Sequence[int], lane: int, nbytes: int, beside: Sequence[Tensor] = ()) -> Loan:
        """`beside` are tensors that it hands over."""
        return Loan(tuple(to), lane, torch.empty(nbytes, dtype=torch.uint8), beside)

    def own(self, loan: Loan) -> Delivery:
        """What this place itself gets, where it is among those that get it."""
        return Delivery(loan.inline or loan.frame, loan.beside)

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        """Sends a frame, or a credit where there is none; never waits for the receiver's program. `write`: to
        be written there."""
        raise NotImplementedError

    def forget(self) -> None:
        """In a forked child of this process: all of it is its parent's, and what it has open is closed."""

    def tell(self, lost: int) -> None:
        """Says to all who are connected that a place is lost; waits for nobody."""

    def leave(self) -> None:
        """After the last frame that anybody sends: says goodbye, and waits for nobody."""

    def close(self) -> None:
        """After `leave`, which all places call together: waits for everybody's goodbye, and lets go of
        everything."""


class _Alone(Way):
    """Of a place that reaches nobody but itself."""

    def hands_over(self, to: Sequence[int], lent: bool, tensor: Tensor) -> bool:
        return lent and tensor.device.type not in ("cpu", "meta")

    def own(self, loan: Loan) -> Delivery:
        return Delivery(loan.inline or loan.frame, [flat(tensor) for tensor in loan.beside])


class Transport:
    def __init__(
        self,
        place: int,
        slots: Mapping[int, int],
        who: Callable[[int], str] = "place {}".format,
        route: Callable[[int], str] = lambda lane: "",
        lanes: int = UNBOUND,
    ) -> None:
        """`slots` says for each lane how many frames may be on their way between two places; `who` names
        places, `route` the routes of lanes. There are so many `lanes`."""
        self.place = place
        self.who = who
        self._route = route
        self._slots, self._lanes = dict(slots), lanes
        self._ways: dict[int, Way] = {}
        self._each: tuple[Way, ...] = ()
        """Of the ways to all places."""
        self._alone = _Alone()
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._inbox: defaultdict[tuple[int, int], deque[Delivery]] = defaultdict(deque)
        self._credits: dict[tuple[int, int], int] = {}
        self._lost: PeerLost | None = None
        self._gone: dict[int, str] = {}
        """Places that have ended, and how."""
        self._watch: Watch | None = None
        self.patience = 0.0
        """Seconds to wait for one place before it counts as lost; 0 for ever."""
        self.dropped: Callable[[], bool] = lambda: False
        """Asked by whoever waits: whether the step that it waits in is dropped."""
        self.device: torch.device | None = None
        """This worker's, where it is another than the CPU: what comes from one is put there."""
        self.transfers: Transfers | None = None
        """Of this worker's device, where it has any."""
        os.register_at_fork(after_in_child=partial(_forget, weakref.ref(self)))

    def reach(self, places: Iterable[int], way: Way) -> None:
        """Says by which way places are reached; what was said first holds."""
        self._ways = {**dict.fromkeys(places, way), **self._ways}
        self._each = tuple(dict.fromkeys(self._ways.values()))

    def reserve(self, lane: int, slots: int) -> None:
        """Says how many slots a lane has, before its first frame; 0 where both ends take turns, so that
        nothing needs a bound."""
        self._slots[lane] = slots

    def slots(self, lane: int) -> int:
        """How many frames of a lane may be on their way between two places."""
        return self._slots.get(lane, SLOTS)

    def way(self, place: int) -> Way:
        return self._ways.get(place, self._alone)

    # Sending

    def alloc(self, nbytes: int) -> Tensor:
        """uint8 `[nbytes]` of any content: what is written to it is not copied when it is given to who can
        read it where it lies."""
        rooms = (room for way in self._each if (room := way.alloc(nbytes)) is not None)
        room = next(rooms, None)
        return torch.empty(nbytes, dtype=torch.uint8) if room is None else room

    def lies_mappable(self, tensor: Tensor) -> bool:
        """Whether those who get a tensor as it lies can map what others give them after it."""
        return any(way.lies_mappable(tensor) for way in self._each)

    def cat(self, tensors: list[Tensor]) -> Tensor:
        """One after another along dim 0: mapped so where they lie in memory for that, else copied."""
        found = (joined for way in self._each if (joined := way.joined(tensors)) is not None)
        joined = next(found, None)
        return torch.cat(tensors) if joined is None else joined

    def frame(self, to: Sequence[int], value: Any, *, lent: bool = False) -> Frame:
        """A value laid out for some places, all by the same way; `lent` if nobody writes to it any more.
        Raises `FrameError`."""
        return Frame(value, partial(self._way_to(to).hands_over, to, lent))

    def lend(
        self,
        to: Sequence[int],
        lane: int,
        nbytes: int,
        beside: Sequence[Tensor] = (),
        writers: Sequence[int] = (),
        writing: int = -1,
    ) -> Loan:
        """Memory for a frame that goes to some places, all by the same way, and that `writers` will be
        invited to in their lane `writing`. Waits for all their slots. Raises `PeerLost`, `Dropped`, `Held`,
        `Full`."""
        self._take_slots([(place, lane) for place in to] + [(place, writing) for place in writers])
        return self._way_to(to).lend(to, lane, nbytes, beside)

    def deliver(self, loan: Loan) -> None:
        """Sends what was lent; from then on it belongs to those who get it."""
        way = self._way_to(loan.to)
        for place in loan.to:
            if place == self.place:
                own = way.own(loan)
                self.arrived(place, loan.lane, own.frame, own.beside)
            else:
                way.post(place, loan.lane, loan)

    def pass_on(self, came: Delivery, to: Sequence[int], lane: int) -> None:
        """Sends what came to others. Raises `FrameError`."""
        if came.beside:
            self.send(to, lane, self.frame(to, came.value()))
            return
        frame = tensor_of(came.frame)
        loan = self.lend(to, lane, len(frame))
        copy(loan.frame, frame)
        self.deliver(loan)

    def invite(self, loan: Loan, writer: int, lane: int) -> None:
        """Lets one of the writers, which `receive`s it on `lane`, write to a frame that is not delivered yet."""
        self.way(writer).post(writer, lane, loan, write=True)

    def send(self, to: int | Sequence[int], lane: int, frame: Frame) -> None:
        places = (to,) if isinstance(to, int) else tuple(to)
        if frame.nbytes <= self._way_to(places).inline and not frame.beside:
            self._take_slots([(place, lane) for place in places])
            loan = Loan(places, lane, _NOWHERE, inline=frame.inline())
        else:
            loan = self.lend(places, lane, frame.nbytes, frame.beside)
            frame.write(loan.frame)
        self.deliver(loan)

    def _way_to(self, places: Sequence[int]) -> Way:
        """By which all of them are reached."""
        for place in places:
            if place != self.place:
                return self.way(place)
        return self.way(self.place)

    def _take_slots(self, wanted: Sequence[tuple[int, int]]) -> None:
        """One of each other place and lane, all of them or, where one is waited for in vain, none."""
        bounded = [key for key in wanted if key[0] != self.place and self.slots(key[1])]
        with self._lock:
            for key in bounded:
                if self._credits.setdefault(key, self.slots(key[1])) <= 0:
                    self._await_slot(key)
            for key in bounded:
                self._credits[key] -= 1

    def _await_slot(self, key: tuple[int, int]) -> None:
        self._wait(lambda: self._credits[key] > 0, key[0], "take what it was sent", key[1])

    # Receiving

    def receive(self, source: int, lane: int) -> Delivery:
        """What comes next in a lane, its frame as uint8 `[n]`. Raises `PeerLost`, `Dropped`."""
        came = self._next(source, lane)
        came.frame = tensor_of(came.frame)
        return came

    def _next(self, source: int, lane: int) -> Delivery:
        with self._lock:
            box = self._inbox[source, lane]
            if not box or not box[0].whole:
                self._wait(lambda: bool(box) and box[0].whole, source, "send", lane)
            came = box.popleft()
        if source != self.place and self.slots(lane):
            self.way(source).post(source, lane, None)
        return came

    def hear(self, source: int, lane: int) -> Any:
        """The next value of a lane. Raises `PeerLost`, also where what came is no value, and `Dropped`."""
        return self.read(self._next(source, lane), source)

    def read(self, came: Delivery, source: int) -> Any:
        """The value of what came. Raises `PeerLost` where it is none."""
        try:
            return came.value(self.device)
        except FrameError as error:
            raise self.lost(source, f"sent what is no frame: {error}") from None

    def admit(self, source: int, lane: int) -> None:
        """Before a way takes in what a peer says is a frame. Raises `Malformed` where the peer had no slot
        for it."""
        if not 0 <= lane < self._lanes or len(self._inbox.get((source, lane), ())) >= (
            self.slots(lane) or SLOTS
        ):
            raise Malformed(f"a frame for which there is no slot in lane {lane}")

    def arrived(
        self,
        source: int,
        lane: int,
        frame: Tensor | bytes | None,
        beside: Sequence[Tensor | int] = (),
        come: Callable[[], None] = lambda: None,
    ) -> None:
        """A message has come: a frame, or a credit; called by ways, on any thread. Of a tensor beside it that
        a transfer brings only the bytes are known, and `come` tells who sent it to begin."""
        with self._lock:
            if frame is None:
                self._credits[source, lane] = self._credits.get((source, lane), 0) + 1
            else:
                self._inbox[source, lane].append(
                    self._delivery(source, frame, beside, come) if beside else Delivery(frame)
                )
            self._notify()

    def _delivery(
        self, source: int, frame: Tensor | bytes, beside: Sequence[Tensor | int], come: Callable[[], None]
    ) -> Delivery:
        sizes = [one for one in beside if isinstance(one, int)]
        delivery = Delivery(frame, [one for one in beside if isinstance(one, Tensor)], not sizes)
        if sizes and self.transfers:
            self.transfers.expect(source, sizes, come, partial(self._completed, delivery, beside))
        return delivery

    def _completed(self, delivery: Delivery, beside: Sequence[Tensor | int], came: list[Tensor]) -> None:
        """The rest of it has come, on a thread of the transfers."""
        rest = iter(came)
        with self._lock:
            delivery.beside = [next(rest) if isinstance(one, int) else one for one in beside]
            delivery.whole = True
            self._notify()

    # Waiting

    def watch(self, file: int, act: Callable[[], None]) -> None:
        """Has whoever waits read a file, by `act`, when there is something to read."""
        self._watch = self._watch or Watch()
        self._watch.add(file, act)

    def unwatch(self, file: int) -> None:
        if self._watch:
            self._watch.remove(file)

    def look(self, seconds: float = 0.0) -> None:
        """Hears what has come; where that is nothing, waits so long for something."""
        if self._watch:
            self._watch.look(seconds)

    def wake(self) -> None:
        """Makes whoever waits look up: the end of the run was told."""
        with self._lock:
            self._notify()

    def ended(self, place: int, how: str) -> None:
        """A place is gone: whoever waits for it hears of it."""
        with self._lock:
            self._gone.setdefault(place, how)
            self._notify()

    def fail(self, lost: PeerLost) -> None:
        """Nothing that is waited for can come any more."""
        with self._lock:
            self._lost = self._lost or lost
            self._notify()

    def tell(self, lost: PeerLost) -> None:
        """This place ends because another one is lost: those who wait for it are told who that is."""
        if lost.place is not None:
            for way in self._each:
                way.tell(lost.place)

    def told(self, lost: int, teller: int) -> None:
        """A place that ends says why."""
        self.fail(self.lost(lost, f"is lost, as {self.who(teller)} says"))

    def full(self, nbytes: int, lane: int, why: Exception) -> Full:
        """The error that says so; the bytes are those of a frame, with what its way keeps beside it."""
        route = self._route(lane)
        return Full(f"cannot get {nbytes:,} bytes{f' for `{route}`' if route else ''}: {why}")

    def lost(self, place: int, how: str, lane: int = -1) -> PeerLost:
        """The error that says so; `lane` is the one in which it was waited for."""
        return PeerLost(f"{self.who(place)} {how}", place, self._route(lane))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """For ways, at the end."""
        with self._lock:
            self._wait(ready, self.place, "", -1)

    def close(self) -> None:
        """After the last frame that anybody sends: all places close together."""
        try:
            for way in self._each:
                way.leave()
            for way in self._each:
                way.close()
        finally:
            if self.transfers:
                self.transfers.close()
        with self._lock:
            watch, self._watch = self._watch, None
        if watch:
            watch.close()

    def check(self, on: int, lane: int) -> None:
        """Raises `PeerLost` where it is in vain to wait for a place, in a lane."""
        if self._lost:
            raise PeerLost(self._lost.how, self._lost.place, self._route(lane)) from self._lost
        if on in self._gone:
            raise self.lost(on, self._gone[on], lane)

    def _notify(self) -> None:
        if self._watch:
            self._watch.wake()
        else:
            self._state.notify_all()

    def _wait(self, ready: Callable[[], bool], on: int, act: str, lane: int) -> None:
        """Waits, with the state locked, for something that a place does in a lane."""
        until = time.monotonic() + self.patience if self.patience and on != self.place else None
        while not ready():
            if self.dropped():
                raise Dropped
            self.check(on, lane)
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise self.lost(on, f"did not {act} for {self.patience:.0f} s, which is `run.patience`", lane)
            if self._watch is None:
                self._state.wait(left)
            else:
                self._lock.release()
                try:
                    self._watch.look(left)
                finally:
                    self._lock.acquire()


def _forget(transport: weakref.ref[Transport]) -> None:
    """A child, a data loader's, neither speaks in its parent's name nor keeps its connections open when it
    dies."""
    if found := transport():
        for way in found._each:
            way.forget()


def tensor_of(frame: Tensor | bytes) -> Tensor:
    """uint8 `[n]`."""
    if isinstance(frame, Tensor):
        return frame
    return torch.frombuffer(bytearray(frame), dtype=torch.uint8) if frame else _NOWHERE


def flat(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, uint8 `[n]`; of a contiguous one as they lie."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
