"""One connection as messages: a head (what, lane, bytes), then the bytes, sent from and read into the memory
where they stay.

A `Line` never waits: what its socket does not take is its backlog, and it reads what is there. `Progress` is
the thread that comes back to a socket when there is more to do.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

HEAD = struct.Struct("<Biq")
"""What, lane, bytes."""
_TOGETHER = 64
"""Pieces of a backlog that one call of the system sends."""
_WORTH = 1 << 20
"""Bytes of a large frame that are worth a turn of the thread that reads."""


@dataclass(frozen=True)
class Message:
    what: int
    lane: int
    memory: Tensor
    """uint8 `[n]`."""


Room = Callable[["Line", int, int, int], Tensor]
"""(line, what, lane, bytes) -> where a message's bytes go; raises `Malformed`."""


class Line:
    """One connection, with a place."""

    def __init__(self, sock: socket.socket, room: Room, place: int = -1) -> None:
        self.sock, self.place = sock, place
        self.over = False
        """Whether the other end has said goodbye."""
        self.busy = False
        """Whether somebody sends what is in the backlog."""
        self._backlog: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._room = room
        self._head = bytearray()
        self._what, self._lane = 0, 0
        self._memory: Tensor | None = None
        self._rest = memoryview(b"")
        """Of the memory, what is not filled yet."""
        self._waking = 1

    # Sending

    def push(self, what: int, lane: int, nbytes: int = 0, memory: memoryview | None = None) -> bool:
        """Sends a message, from any thread; whether some of it is left to a `drain` that nobody does yet."""
        with self._lock:
            self._backlog.append(memoryview(HEAD.pack(what, lane, nbytes)))
            if memory is not None and nbytes:
                self._backlog.append(memory)
            if self.busy:
                return False
            self.busy = True
        return not self.drain(1)

    def drain(self, calls: int) -> bool:
        """Sends what the socket takes of the backlog in so many calls; whether that was all. Only for who has
        the busy line."""
        while True:
            with self._lock:
                pieces = [*islice(self._backlog, _TOGETHER)]
                if not pieces:
                    self.busy = False
                    return True
            if not calls:
                return False
            calls -= 1
            try:
                sent = self.sock.sendmsg(pieces)
            except BlockingIOError:
                return False
            except OSError:  # its end is read, too, and told there
                sent = sum(map(len, pieces))
            with self._lock:
                self._forget(sent)

    def _forget(self, sent: int) -> None:
        while sent:
            piece = self._backlog.popleft()
            if len(piece) > sent:
                self._backlog.appendleft(piece[sent:])
            sent -= min(sent, len(piece))

    # Receiving

    def read(self, scratch: memoryview) -> Iterator[Message]:
        """The messages that are complete with what has come. Raises `Malformed`, `OSError`, and `EOFError` at
        the end of the connection.

        Bytes go by way of `scratch`, many small messages at a time; those of a frame that is larger go
        straight to its memory.
        """
        direct = len(self._rest) > len(scratch)
        try:
            count = self.sock.recv_into(self._rest if direct else scratch)
        except BlockingIOError:
            return
        if not count:
            raise EOFError
        if direct:
            self._rest = self._rest[count:]
            yield from self._completed()
        else:
            yield from self._parsed(scratch[:count])
        self._wake_at(min(len(self._rest), _WORTH) if len(self._rest) > len(scratch) else 1)

    def _wake_at(self, count: int) -> None:
        """Has the kernel call the socket ready when that many bytes are there, or its end: each turn of a
        thread has a price."""
        if count != self._waking:
            self._waking = count
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _parsed(self, data: memoryview) -> Iterator[Message]:
        while data:
            if self._memory is None:
                missing = HEAD.size - len(self._head)
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) == HEAD.size:
                    self._begin()
            else:
                count = min(len(data), len(self._rest))
                self._rest[:count] = data[:count]
                self._rest, data = self._rest[count:], data[count:]
            yield from self._completed()

    def _begin(self) -> None:
        self._what, self._lane, nbytes = HEAD.unpack(self._head)
        self._head.clear()
        self._memory = self._room(self, self._what, self._lane, nbytes)
        self._rest = memoryview_of(self._memory)

    def _completed(self) -> Iterator[Message]:
        if self._memory is not None and not self._rest:
            memory, self._memory, self._rest = self._memory, None, memoryview(b"")
            yield Message(self._what, self._lane, memory)


def memoryview_of(tensor: Tensor) -> memoryview:
    """The bytes of uint8 `[n]`, which live as long as the view."""
    return tensor.numpy().data


class Progress:
    """Acts on files as they become ready, beside the program."""

    def __init__(
        self,
        name: str,
        events: int,
        broke: Callable[[Exception], None],
        look: Callable[[], None] | None = None,
        pause: float = 1.0,
    ) -> None:
        """`look` is called after every `pause`; `broke` with what nobody expected, at the thread's end."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._events, self._broke, self._look, self._pause = events, broke, look, pause
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[], None]] = {}
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._looked = time.monotonic()

    def add(self, file: int, act: Callable[[], None]) -> None:
        """From any thread."""
        self._acts[file] = act
        self._epoll.register(file, self._events)

    def remove(self, file: int) -> None:
        if self._acts.pop(file, None):
            with suppress(OSError):
                self._epoll.unregister(file)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # the border of a thread: whoever waits for it must hear of it
            self._broke(error)

    def _turn(self) -> bool:
        ready = self._epoll.poll(None if self._look is None else self._pause)
        for file, _ in ready:
            if file == self._stop:
                return False
            if act := self._acts.get(file):
                act()
        if self._look and (now := time.monotonic()) >= self._looked + self._pause:
            self._looked = now
            self._look()
        return True

    def close(self) -> None:
        """Ends the thread, if it was started."""
        os.eventfd_write(self._stop, 1)
        if self._thread.ident:
            self._thread.join()
        self._epoll.close()
        os.close(self._stop)
