"""One TCP connection, and how its socket is set up.

A `Connection` never waits. It sends what its socket takes and keeps the rest as its backlog, and it reads
only what has arrived.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy
from torch import Tensor

from meshctl.runtime.transports.peers import HEAD, Message, PeerConnection

SILENCE_S = 20.0
"""Seconds without an acknowledgement from a node's kernel, after which the node is lost."""
NEAR_US = 80
"""The longest round trip, in microseconds, of a peer so near that two connections with `NEAR_BYTES` each keep
a link of 100 Gbit/s busy."""
NEAR_BYTES = 1 << 18
"""Half of the memory that the kernel may use for what it sends to a near peer: it doubles the number."""
_MIN_RTT_AT = 148
"""The place of the shortest round trip, 32 bits of microseconds, in the kernel's `tcp_info`."""
_UNANSWERED = struct.Struct("=2xBB52xI")
"""Three fields of the kernel's `tcp_info`: retransmissions without an answer, probes without an answer, and
milliseconds since the last acknowledgement."""
LEAST_BYTES_PER_S = 1e9
"""The least rate at which sockets must take the memory of tensors. A slower network gets a copy, so that the
program does not wait for it."""
GRACE_S = 0.005
"""Seconds in which they may take nothing."""
_MAX_PIECES_PER_CALL = 64
"""The most pieces of a backlog that one system call sends."""
_MAX_CALLS = 8
"""System calls for one socket before the next one has its turn."""
WAKE_BYTES = 1 << 20
"""Number of bytes of a large frame that must have arrived before the reading thread is woken."""
MemoryFor = Callable[["Connection", int, int, int], Tensor]
"""(connection, kind, tag, bytes) -> the memory into which the body of a message is received. Raises
`ProtocolError`."""


class Backlog:
    """The bytes that are still to be sent on a socket, in pieces of memory that the kernel reads where they
    are. It never waits: it sends what its socket takes and keeps the rest. Any thread may add to it."""

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


class Connection(PeerConnection):
    """One connection to a peer of another node."""

    def __init__(
        self, sock: socket.socket, memory_for: MemoryFor, job_rank: int = -1, generation: int = 0
    ) -> None:
        super().__init__(sock, job_rank, generation)
        self.backlog = Backlog(sock)
        self.out_of_band_sizes: list[int] = []
        """Bytes of the tensors that travel with the next frame."""
        self._memory_for = memory_for
        self._head_bytes = bytearray()
        self._head = 0, 0, 0
        """Kind, generation and tag of the message that is being received."""
        self._memory: Tensor | None = None
        self._unfilled = memoryview(b"")
        """The part of `_memory` that is still to be received."""
        self._wake_bytes = 1

    def read(self, scratch: memoryview) -> Iterator[Message]:
        """Yields the messages that are complete with what has arrived. Raises `ProtocolError`, `OSError`, and
        `EOFError` at the end of the connection.

        Small messages pass through `scratch`, many at a time. The bytes of a larger frame go straight to its
        memory. Nothing behind its greeting is read of a peer that is unknown.
        """
        is_direct = len(self._unfilled) > len(scratch)
        if self.job_rank < 0 and not is_direct:
            scratch = scratch[: len(self._unfilled) or HEAD.size - len(self._head_bytes)]
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
        self._wake_at(len(self._unfilled) if len(self._unfilled) > len(scratch) else 1)

    def _wake_at(self, missing: int) -> None:
        """Sets the number of bytes that must have arrived before the kernel reports the socket as readable:
        those that are missing, at most `WAKE_BYTES`."""
        nbytes = min(missing, WAKE_BYTES)
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
        kind, generation, tag, nbytes = HEAD.unpack(self._head_bytes)
        self._head_bytes.clear()
        self._head = kind, generation, tag
        self._memory = self._memory_for(self, kind, tag, nbytes)
        self._unfilled = memoryview_of(self._memory)

    def _completed(self) -> Iterator[Message]:
        if self._memory is not None and not self._unfilled:
            memory, self._memory, self._unfilled = self._memory, None, memoryview(b"")
            yield Message(*self._head, memory)


def memoryview_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of uint8 `[n]`, which live as long as the view."""
    return tensor.numpy().data


# Sockets


def connected(host: str, port: int) -> socket.socket:
    """Returns a socket that is connected to a listener. Raises `OSError`."""
    sock = socket.create_connection((host, port), SILENCE_S)
    prepare(sock)
    return sock


def prepare(sock: socket.socket) -> None:
    """Makes a connected socket non-blocking, and lets the kernel probe an idle connection.

    The sizes of its buffers are left to the kernel, which grows them as the network needs it.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(SILENCE_S / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(SILENCE_S / 4)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


def keep_in_cache(sock: socket.socket) -> None:
    """Bounds what the kernel holds of large frames that are sent to a near peer, so that it uses memory again
    that is in the processor's cache."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
    if len(info) == _MIN_RTT_AT + 4 and int.from_bytes(info[_MIN_RTT_AT:], sys.byteorder) <= NEAR_US:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)


def is_silent(sock: socket.socket) -> bool:
    """Returns whether the peer's kernel has not acknowledged something for `SILENCE_S`. A kernel also
    acknowledges for a program that does not read."""
    if sock.fileno() < 0:
        return False
    repetitions, probes, since_ms = _UNANSWERED.unpack(
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNANSWERED.size)
    )
    return bool(max(repetitions, probes) > 1 and since_ms > SILENCE_S * 1000)


def silence() -> str:
    """Returns what happened to a silent peer."""
    return f"has not answered for {SILENCE_S:.0f} s"
