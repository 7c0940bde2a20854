"""How frames get from one worker to another: a seam of two verbs, with one file per way.

A transport carries frames (uint8 tensors) between places, in lanes. A lane is a number that both ends know; frames of one lane
between two places come in order. `send` returns as soon as the frame is in a free slot, whatever its receiver is doing, and
waits only while all slots of that lane are full; the receiver's `receive` gives the slot back, as a credit. So what a group is
ahead of another is bounded, and no order of stages can deadlock.

What all ways share (slots, credits, inbox, waiting) is here; a way says only how a message leaves (`_post`) and calls `_deliver`
when one has come.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from torch import Tensor

SLOTS = 2
"""Of a lane that says nothing else."""


class PeerLost(ConnectionError):
    """A peer is gone, or never came: the fault is elsewhere."""


class Dropped(Exception):
    """The step in which somebody waits is one of those that the end of the run drops."""


class Transport:
    def __init__(self, place: int, slots: Mapping[int, int]) -> None:
        """`slots` says for each lane how many frames may be on their way between two places."""
        self.place = place
        self._slots = dict(slots)
        self._state = threading.Condition()
        self._inbox: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self._credits: dict[tuple[int, int], int] = {}
        self._lost: Exception | None = None
        self.dropped: Callable[[], bool] = lambda: False
        """Asked by whoever waits: whether the step that it waits in is dropped."""

    def reserve(self, lane: int, slots: int) -> None:
        """Says how many slots a lane has, before its first frame."""
        self._slots[lane] = slots

    def send(self, to: int, lane: int, frame: Tensor) -> None:
        """Puts a frame into a slot; from then on the transport owns its memory. Raises `PeerLost`, `Dropped`."""
        if to == self.place:
            with self._state:
                self._inbox[to, lane].append(frame)
            return
        with self._state:
            key = (to, lane)
            self._credits.setdefault(key, self._slots.get(lane, SLOTS))
            self._wait(lambda: self._credits[key] > 0)
            self._credits[key] -= 1
        self._post(to, lane, frame)

    def receive(self, source: int, lane: int) -> Tensor:
        """The next frame of a lane. Raises `PeerLost`, `Dropped`."""
        with self._state:
            box = self._inbox[source, lane]
            self._wait(lambda: bool(box))
            frame = box.popleft()
        if source != self.place:
            self._post(source, lane, None)
        return frame

    def wake(self) -> None:
        """Makes whoever waits look up: the end of the run was told."""
        with self._state:
            self._state.notify_all()

    def close(self) -> None:
        """After the last frame that anybody sends: all places close together."""

    def _post(self, to: int, lane: int, frame: Tensor | None) -> None:
        """Sends a frame, or a credit where there is none; never waits for the receiver's program."""
        raise NotImplementedError

    def _deliver(self, source: int, lane: int, frame: Tensor | None) -> None:
        """A message has come; called on any thread."""
        with self._state:
            if frame is None:
                self._credits[source, lane] += 1
            else:
                self._inbox[source, lane].append(frame)
            self._state.notify_all()

    def _fail(self, lost: Exception) -> None:
        with self._state:
            self._lost = self._lost or lost
            self._state.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self.dropped():
                raise Dropped
            if self._lost:
                raise PeerLost(str(self._lost)) from self._lost
            self._state.wait()
