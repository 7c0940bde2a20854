"""The bytes that are still to be sent on a socket, in pieces of memory that the kernel reads where they
are."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import numpy
from torch import Tensor

LEAST_BYTES_PER_S = 1e9
"""The least rate at which sockets must take the memory of tensors. A slower network gets a copy, so that the
program does not wait for it."""
GRACE_S = 0.005
"""Seconds in which they may take nothing."""
_MAX_PIECES_PER_CALL = 64
"""The most pieces of a backlog that one system call sends."""
_MAX_CALLS = 8
"""System calls for one socket before the next one has its turn."""


class Backlog:
    """It never waits: it sends what its socket takes and keeps the rest. Any thread may add to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_sending = False
        """True if some thread has taken on the backlog: only this thread may `drain` it."""
        self.bytes_sent = 0
        self._pieces: deque[memoryview] = deque()
        self._lock = threading.Lock()

    def push(self, pieces: Iterable[memoryview], memory_for: Callable[[int], Tensor] | None = None) -> bool:
        """Sends some bytes as far as one system call does it. Returns whether the caller has to have the rest
        sent by `drain`; False also where another thread already does that. With `memory_for`, which returns
        uint8 `[n]`, that thread sends a copy."""
        with self._lock:
            if self.is_sending:
                self._pieces += [copied(pieces, memory_for)] if memory_for else pieces
                return False
            self._pieces += pieces
            self.is_sending = True
        return not self.drain(1)

    def drain(self, max_calls: int = _MAX_CALLS) -> bool:
        """Sends what the socket takes, with at most `max_calls` system calls. Returns whether the backlog is
        empty. Only for the thread that has set `is_sending`."""
        while True:
            with self._lock:
                pieces = [*islice(self._pieces, _MAX_PIECES_PER_CALL)]
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
        self.bytes_sent += sent
        while sent:
            piece = self._pieces.popleft()
            if len(piece) > sent:
                self._pieces.appendleft(piece[sent:])
            sent -= min(sent, len(piece))

    def drain_while_fast(self, memory_for: Callable[[int], Tensor]) -> bool:
        """Sends on this thread as long as the socket takes it fast, then copies the rest: the memory of the
        pieces may change afterwards. Returns whether the backlog is empty. Only for the thread that has set
        `is_sending`.

        It waits for the network at most, never for the program of a receiver, and `GRACE_S` longer than
        `LEAST_BYTES_PER_S` takes.
        """
        ready = select.poll()
        ready.register(self.sock, select.POLLOUT)
        before, began = self.bytes_sent, time.monotonic()
        while True:
            sent = self.bytes_sent - before
            wait_s = began + GRACE_S + sent / LEAST_BYTES_PER_S - time.monotonic()
            if wait_s <= 0:
                break
            if ready.poll(wait_s * 1000) and self.drain():
                return True
        with self._lock:
            if self._pieces:
                self._pieces = deque([copied(self._pieces, memory_for)])
        return False


def copied(pieces: Iterable[memoryview], memory_for: Callable[[int], Tensor]) -> memoryview:
    """Returns the bytes of some pieces in one piece of memory. `memory_for` returns uint8 `[n]`."""
    arrays = [numpy.frombuffer(piece, numpy.uint8) for piece in pieces if len(piece)]
    memory: memoryview = memory_for(sum(map(len, arrays))).numpy().data
    numpy.concatenate(arrays, out=numpy.frombuffer(memory, numpy.uint8))
    return memory
