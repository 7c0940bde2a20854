"""How frames get from one worker to another: slots, credits and waiting, over ways of which each is a file of its own.

A transport carries frames (uint8 tensors) between places, in lanes. A lane is a number that both ends know; frames of one lane
between two places come in order. `lend` gives memory to write a frame to, as soon as a slot of the lane is free at every place that it
goes to; `deliver` sends it, whatever its receivers are doing. A receiver's `receive` gives the slot back, as a credit. So what a group is
ahead of another is bounded, and no order of stages can deadlock.

A `Way` says where that memory is, how a message leaves (`post`), and calls `arrived` when one has come:

    memory    threads of one process              the tensor itself
    local     processes of one node               a header over a unix socket; the frame lies in memory that both map
    tcp       processes of different nodes        the bytes over a connection, into memory that was touched before
    gloo      the same                            torch's gloo
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshctl.runtime.frames import Frame, FrameError, unpack

_NOWHERE = torch.empty(0, dtype=torch.uint8)
SLOTS = 2
"""Of a lane that says nothing else."""


class PeerLost(ConnectionError):
    """A peer is gone, or never came: the fault is elsewhere."""


class WayError(ConnectionError):
    """Workers that cannot reach one another as they were started; the message says what to change."""


class Dropped(Exception):
    """The step in which somebody waits is one of those that the end of the run drops."""


class Held(Exception):
    """A receiver keeps the memory of what it was sent, and gives nothing back."""


class Loan(NamedTuple):
    """Memory for one frame, until it is delivered."""

    to: tuple[int, ...]
    lane: int
    frame: Tensor
    """uint8 `[n]`."""
    kept: Any = None
    """What the way knows of it."""
    inline: bytes = b""
    """The frame itself, where it is in no memory of its own."""


class Way:
    """How messages reach some places."""

    shares_memory = False
    """Whether several places may write one frame, each a part of it."""
    inline = 0
    """Bytes of a frame that is posted as bytes, in no memory of its own."""

    def lend(self, to: Sequence[int], lane: int, nbytes: int) -> Loan:
        return Loan(tuple(to), lane, torch.empty(nbytes, dtype=torch.uint8))

    def own(self, loan: Loan) -> Tensor | bytes:
        """The frame for this place itself, where it is among those that get it."""
        return loan.frame

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        """Sends a frame, or a credit where there is none; never waits for the receiver's program. `write`: to be written there."""
        raise NotImplementedError

    def leave(self) -> None:
        """After the last frame that anybody sends: says goodbye, and waits for nobody."""

    def close(self) -> None:
        """After `leave`, which all places call together: waits for everybody's goodbye, and lets go of everything."""


class Transport:
    def __init__(self, place: int, slots: Mapping[int, int], who: Callable[[int], str] = "place {}".format) -> None:
        """`slots` says for each lane how many frames may be on their way between two places; `who` names a place."""
        self.place = place
        self.who = who
        self._slots = dict(slots)
        self._ways: dict[int, Way] = {}
        self._alone = Way()
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._inbox: defaultdict[tuple[int, int], deque[Tensor | bytes]] = defaultdict(deque)
        self._credits: dict[tuple[int, int], int] = {}
        self._lost: PeerLost | None = None
        self._gone: dict[int, str] = {}
        """Places that have ended, and how."""
        self._watch: _Watch | None = None
        self.patience = 0.0
        """Seconds to wait for one place before it counts as lost; 0 for ever."""
        self.dropped: Callable[[], bool] = lambda: False
        """Asked by whoever waits: whether the step that it waits in is dropped."""

    def reach(self, places: Iterable[int], way: Way) -> None:
        """Says by which way places are reached; what was said first holds."""
        self._ways = {**dict.fromkeys(places, way), **self._ways}

    def reserve(self, lane: int, slots: int) -> None:
        """Says how many slots a lane has, before its first frame; 0 where both ends take turns, so that nothing needs a bound."""
        self._slots[lane] = slots

    def slots(self, lane: int) -> int:
        """How many frames of a lane may be on their way between two places."""
        return self._slots.get(lane, SLOTS)

    def way(self, place: int) -> Way:
        return self._ways.get(place, self._alone)

    # Sending

    def lend(self, to: Sequence[int], lane: int, nbytes: int) -> Loan:
        """Memory for a frame that goes to some places, all by the same way. Waits for their slots. Raises `PeerLost`, `Dropped`."""
        self._take_slots(to, lane)
        return self._way_to(to).lend(to, lane, nbytes)

    def deliver(self, loan: Loan) -> None:
        """Sends what was lent; from then on it belongs to those who get it."""
        way = self._way_to(loan.to)
        for place in loan.to:
            if place == self.place:
                self.arrived(place, loan.lane, way.own(loan))
            else:
                way.post(place, loan.lane, loan)

    def invite(self, loan: Loan, writer: int, lane: int) -> None:
        """Lets another place, which `receive`s it on `lane`, write to a frame that is not delivered yet."""
        self._take_slot(writer, lane)
        self.way(writer).post(writer, lane, loan, write=True)

    def send(self, to: int | Sequence[int], lane: int, frame: Frame) -> None:
        places = (to,) if isinstance(to, int) else tuple(to)
        if frame.nbytes <= self._way_to(places).inline:
            self._take_slots(places, lane)
            loan = Loan(places, lane, _NOWHERE, inline=frame.inline())
        else:
            loan = self.lend(places, lane, frame.nbytes)
            frame.write(loan.frame)
        self.deliver(loan)

    def _way_to(self, places: Sequence[int]) -> Way:
        """By which all of them are reached."""
        for place in places:
            if place != self.place:
                return self.way(place)
        return self.way(self.place)

    def _take_slots(self, to: Sequence[int], lane: int) -> None:
        if self.slots(lane):
            for place in to:
                if place != self.place:
                    self._take_slot(place, lane)

    def _take_slot(self, to: int, lane: int) -> None:
        slots = self.slots(lane)
        if not slots:
            return
        key = (to, lane)
        with self._lock:
            if self._credits.setdefault(key, slots) <= 0:
                self._wait(lambda: self._credits[key] > 0, to, "take what it was sent")
            self._credits[key] -= 1

    # Receiving

    def receive(self, source: int, lane: int) -> Tensor:
        """The next frame of a lane. Raises `PeerLost`, `Dropped`."""
        frame = self._next(source, lane)
        if isinstance(frame, Tensor):
            return frame
        return torch.frombuffer(bytearray(frame), dtype=torch.uint8) if frame else _NOWHERE

    def hear(self, source: int, lane: int) -> Any:
        """The next value of a lane. Raises `PeerLost`, also where what came is no value, and `Dropped`."""
        frame = self._next(source, lane)
        try:
            return unpack(frame)
        except FrameError as error:
            raise PeerLost(f"{self.who(source)} sent what is no frame: {error}") from None

    def _next(self, source: int, lane: int) -> Tensor | bytes:
        with self._lock:
            box = self._inbox[source, lane]
            if not box:
                self._wait(lambda: bool(box), source, "send")
            frame = box.popleft()
        if source != self.place and self.slots(lane):
            self.way(source).post(source, lane, None)
        return frame

    def arrived(self, source: int, lane: int, frame: Tensor | bytes | None) -> None:
        """A message has come: a frame, or a credit; called by ways, on any thread."""
        with self._lock:
            if frame is None:
                self._credits[source, lane] = self._credits.get((source, lane), 0) + 1
            else:
                self._inbox[source, lane].append(frame)
            self._notify()

    # Waiting

    def watch(self, file: int, act: Callable[[], None]) -> None:
        """Has whoever waits read a file, by `act`, when there is something to read."""
        self._watch = self._watch or _Watch()
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

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """For ways, at the end."""
        with self._lock:
            self._wait(ready, self.place, "")

    def close(self) -> None:
        """After the last frame that anybody sends: all places close together."""
        ways = [*dict.fromkeys(self._ways.values())]
        for way in ways:
            way.leave()
        for way in ways:
            way.close()
        with self._lock:
            watch, self._watch = self._watch, None
        if watch:
            watch.close()

    def _notify(self) -> None:
        if self._watch:
            self._watch.wake()
        else:
            self._state.notify_all()

    def _wait(self, ready: Callable[[], bool], on: int, act: str) -> None:
        """Waits, with the state locked, for something that a place does."""
        until = time.monotonic() + self.patience if self.patience and on != self.place else None
        while not ready():
            if self.dropped():
                raise Dropped
            if self._lost:
                raise PeerLost(str(self._lost)) from self._lost
            if on in self._gone:
                raise PeerLost(f"{self.who(on)} {self._gone[on]}")
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise PeerLost(f"{self.who(on)} did not {act} for {self.patience:.0f} s, which is `run.patience`")
            if self._watch is None:
                self._state.wait(left)
            else:
                self._lock.release()
                try:
                    self._watch.look(left)
                finally:
                    self._lock.acquire()


class _Watch:
    """Files that whoever waits reads; the waiting thread does all the work, so nothing else takes its time."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._acts: dict[int, Callable[[], None]] = {}
        self._thread = threading.get_ident()
        self.add(self._bell, self._heard)

    def add(self, file: int, act: Callable[[], None]) -> None:
        self._acts[file] = act
        self._poll.register(file, select.POLLIN)

    def remove(self, file: int) -> None:
        if self._acts.pop(file, None):
            self._poll.unregister(file)

    def look(self, seconds: float | None = None) -> None:
        """Waits for one of the files, and reads those that have something."""
        for file, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if act := self._acts.get(file):
                act()

    def wake(self) -> None:
        """From another thread."""
        if threading.get_ident() != self._thread:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        os.close(self._bell)

    def _heard(self) -> None:
        os.eventfd_read(self._bell)
