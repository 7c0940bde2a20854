"""Messages on one TCP connection: a head (kind, generation, tag, bytes), then the bytes, which are sent from
and received into the memory where they stay.

A `Connection` never waits. It sends what its socket takes and keeps the rest as its backlog, and it reads
only what has arrived.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from torch import Tensor

HEAD = struct.Struct("<BIiq")
_MAX_PIECES_PER_CALL = 64
"""The most pieces of a backlog that one system call sends."""
_WAKE_BYTES = 1 << 20
"""Number of bytes of a large frame that must have arrived before the reading thread is woken."""


class Head(NamedTuple):
    kind: int
    generation: int
    tag: int
    nbytes: int


class Message(NamedTuple):
    head: Head
    memory: Tensor
    """uint8 `[nbytes]`."""


MemoryFor = Callable[["Connection", Head], Tensor]
"""Returns the memory into which the bytes of a message are received. Raises `ProtocolError`."""


class Connection:
    """One connection to a peer."""

    def __init__(
        self, sock: socket.socket, memory_for: MemoryFor, job_rank: int = -1, generation: int = 0
    ) -> None:
        """`job_rank` is the peer's; -1 until an accepted connection has introduced itself."""
        self.sock, self.job_rank, self.generation = sock, job_rank, generation
        self.is_outgoing = job_rank >= 0
        """Whether this process has opened it."""
        self.has_left = False
        """Whether the peer has said goodbye."""
        self.is_sending = False
        """Whether some thread has taken on the backlog: only this thread may `drain` it."""
        self.out_of_band_sizes: list[int] = []
        """Bytes of the tensors that travel with the next frame."""
        self._memory_for = memory_for
        self._backlog: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._head_bytes = bytearray()
        self._head = Head(0, 0, 0, 0)
        self._memory: Tensor | None = None
        self._unfilled = memoryview(b"")
        """The part of `_memory` that is still to be received."""
        self._wake_bytes = 1

    def drop_all(self) -> None:
        """Ends the connection to a peer that has left. What is sent to it from now on is dropped."""
        self.has_left = True
        self.sock.close()

    # Sending

    def push(self, head: Head, memory: memoryview | None = None) -> bool:
        """Sends a message, from any thread, as far as one system call does it. Returns whether the caller has
        to have the rest sent by `drain`; False also where another thread already does that."""
        with self._lock:
            self._backlog.append(memoryview(HEAD.pack(*head)))
            if memory is not None and head.nbytes:
                self._backlog.append(memory)
            if self.is_sending:
                return False
            self.is_sending = True
        return not self.drain(1)

    def drain(self, max_calls: int) -> bool:
        """Sends what the socket takes of the backlog, with at most `max_calls` system calls. Returns whether
        the backlog is empty. Only for the thread that has set `is_sending`."""
        while True:
            with self._lock:
                pieces = [*islice(self._backlog, _MAX_PIECES_PER_CALL)]
                if not pieces:
                    self.is_sending = False
                    return True
            if not max_calls:
                return False
            max_calls -= 1
            try:
                sent = self.sock.sendmsg(pieces)
            except BlockingIOError:
                return False
            except OSError:  # the end of the peer is read from its connection
                sent = sum(map(len, pieces))
            with self._lock:
                self._remove(sent)

    def _remove(self, sent: int) -> None:
        while sent:
            piece = self._backlog.popleft()
            if len(piece) > sent:
                self._backlog.appendleft(piece[sent:])
            sent -= min(sent, len(piece))

    # Receiving

    def read(self, scratch: memoryview) -> Iterator[Message]:
        """Yields the messages that are complete with what has arrived. Raises `ProtocolError`, `OSError`, and
        `EOFError` at the end of the connection.

        Small messages pass through `scratch`, many at a time. The bytes of a larger frame go straight to its
        memory.
        """
        is_direct = len(self._unfilled) > len(scratch)
        try:
            count = self.sock.recv_into(self._unfilled if is_direct else scratch)
        except BlockingIOError:
            return
        if not count:
            raise EOFError
        if is_direct:
            self._unfilled = self._unfilled[count:]
            yield from self._completed()
        else:
            yield from self._parsed(scratch[:count])
        is_large = len(self._unfilled) > len(scratch)
        self._wake_at(min(len(self._unfilled), _WAKE_BYTES) if is_large else 1)

    def _wake_at(self, nbytes: int) -> None:
        """Has the kernel report the socket as readable only when `nbytes` bytes have arrived or it has
        ended."""
        if nbytes != self._wake_bytes:
            self._wake_bytes = nbytes
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)

    def _parsed(self, data: memoryview) -> Iterator[Message]:
        while data:
            if self._memory is None:
                missing = HEAD.size - len(self._head_bytes)
                self._head_bytes += data[:missing]
                data = data[missing:]
                if len(self._head_bytes) == HEAD.size:
                    self._begin()
            else:
                count = min(len(data), len(self._unfilled))
                self._unfilled[:count] = data[:count]
                self._unfilled, data = self._unfilled[count:], data[count:]
            yield from self._completed()

    def _begin(self) -> None:
        self._head = Head(*HEAD.unpack(self._head_bytes))
        self._head_bytes.clear()
        self._memory = self._memory_for(self, self._head)
        self._unfilled = memoryview_of(self._memory)

    def _completed(self) -> Iterator[Message]:
        if self._memory is not None and not self._unfilled:
            memory, self._memory, self._unfilled = self._memory, None, memoryview(b"")
            yield Message(self._head, memory)


def memoryview_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of uint8 `[n]`, which live as long as the view."""
    return tensor.numpy().data
