"""Frames over gloo, where TCP of our own is not wanted: two threads per bridge keep every promise of the
seam.

The receiving thread always has a receive posted, from anybody, for a small announcement (lane, size); what is
announced it receives at once, from whom announced it. The sending thread sends what was posted, in order. So
a send completes as soon as the other end's thread comes round, never when its program does, and the threads'
number does not grow with the peers'. A credit is an announcement without a frame.

gloo tells nothing of a peer that died while nobody was sending to it: the launcher, which sees the death,
ends the run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from meshctl.runtime.transports.buffers.caching_allocator import Warm
from meshctl.runtime.transports.data_plane import Loan, PeerLost, Transport, Way

_ANNOUNCE, _FRAME = 1, 2
"""gloo's tags."""
_CREDIT, _GOODBYE = -1, -2
"""Sizes that are none."""


class Work(Protocol):
    def wait(self) -> bool: ...
    def _source_rank(self) -> int: ...


class PointToPoint(Protocol):
    """What is used of torch's `ProcessGroupGloo`; its stubs leave it out."""

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def recv_anysource(self, tensors: list[Tensor], tag: int, /) -> Work: ...


@dataclass(frozen=True)
class Bridge:
    """A process group over the workers of one or two groups, built on the launcher's store."""

    name: str
    group: PointToPoint
    places: tuple[int, ...]
    """By rank in the bridge."""


class Gloo(Way):
    """All bridges of a worker."""

    def __init__(self, transport: Transport, bridges: Sequence[Bridge]) -> None:
        """`bridges` in the order in which everybody made them; a place is reached by the first that has it."""
        self._ends = [_End(transport, bridge) for bridge in bridges]
        self._end_of = {place: end for end in reversed(self._ends) for place in end.bridge.places}

    def post(self, to: int, lane: int, loan: Loan | None, *, write: bool = False) -> None:
        self._end_of[to].post(to, lane, loan.frame if loan else None)

    def leave(self) -> None:
        """Says goodbye to every peer."""
        for end in self._ends:
            end.leave()

    def close(self) -> None:
        """Waits for theirs: nothing is on its way then."""
        for end in self._ends:
            end.join()


class _End:
    """One bridge's two threads."""

    def __init__(self, transport: Transport, bridge: Bridge) -> None:
        self.bridge = bridge
        self._transport = transport
        self._warm = Warm()
        self._rank_of = {place: rank for rank, place in enumerate(bridge.places)}
        self._posted: queue.SimpleQueue[tuple[int, int, Tensor | None, int]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True)
            for loop in (self._send_all, self._receive_all)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, to: int, lane: int, frame: Tensor | None) -> None:
        self._posted.put((self._rank_of[to], lane, frame, _CREDIT if frame is None else len(frame)))

    def leave(self) -> None:
        """After the last frame."""
        for rank, place in enumerate(self.bridge.places):
            if place != self._transport.place:
                self._posted.put((rank, 0, None, _GOODBYE))
        self._posted.put((-1, 0, None, 0))

    def join(self) -> None:
        """Waits until everybody has left."""
        for thread in self._threads:
            thread.join()

    def _send_all(self) -> None:
        while True:
            rank, lane, frame, size = self._posted.get()
            if rank < 0:
                return
            self.bridge.group.send([torch.tensor([lane, size])], rank, _ANNOUNCE).wait()
            if frame is not None:
                self.bridge.group.send([frame], rank, _FRAME).wait()

    def _receive_all(self) -> None:
        goodbyes = 0
        announced = torch.zeros(2, dtype=torch.int64)
        while goodbyes < len(self.bridge.places) - 1:
            work = self.bridge.group.recv_anysource([announced], _ANNOUNCE)
            work.wait()
            rank = work._source_rank()
            lane, size = announced.tolist()
            frame = None
            if size == _GOODBYE:
                goodbyes += 1
                continue
            if size >= 0:
                frame = self._warm.take((rank, lane), size)
                self.bridge.group.recv([frame], rank, _FRAME).wait()
            self._transport.arrived(self.bridge.places[rank], lane, frame)

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # the border of a thread: whoever waits for it must hear of it
            self._transport.fail(
                PeerLost(f"bridge {self.bridge.name} broke: {(str(error) or repr(error)).splitlines()[0]}")
            )
