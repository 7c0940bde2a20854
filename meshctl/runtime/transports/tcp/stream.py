"""Further connections of a pair of job ranks, on which large frames travel in shares.

The connection of the pair carries messages in order, among them the first share of each striped frame. Its
streams carry nothing but the other shares, in the order of the frames, without heads. A stream is read only
while a share is expected, so memory and slots are granted where the message of the frame is read.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch import Tensor

from meshctl.runtime.transports.errors import ProtocolError
from meshctl.runtime.transports.tcp.progress import ProgressThread
from meshctl.runtime.transports.transport import Delivery

STREAMS = 2
"""The number of connections on which a striped frame travels."""
STRIPED_MIN = 1 << 22
"""The size in bytes from which frames are striped."""
WAKE_BYTES = 1 << 20
"""Number of bytes of a large frame that must have arrived before the reading thread is woken."""
_PAGE = 1 << 12


def sizes_of_shares(nbytes: int) -> list[int]:
    """Returns the sizes in bytes of the shares of a striped frame, whole pages except for the last one."""
    each = -(-nbytes // (STREAMS * _PAGE)) * _PAGE
    return [max(0, min(each, nbytes - number * each)) for number in range(STREAMS)]


def split(pieces: Iterable[memoryview], sizes: Sequence[int]) -> list[list[memoryview]]:
    """Divides consecutive pieces of memory into shares of some sizes in bytes."""
    left, shares = deque(pieces), list[list[memoryview]]()
    for size in sizes:
        share = list[memoryview]()
        while size:
            piece = left.popleft()
            if len(piece) > size:
                left.appendleft(piece[size:])
            share.append(piece[:size])
            size -= len(share[-1])
        shares.append(share)
    return shares


class WakeMark:
    """The number of bytes that must have arrived on a socket before the kernel reports it as readable."""

    def __init__(self) -> None:
        self._nbytes = 1

    def set(self, sock: socket.socket, missing: int) -> None:
        """`missing` is the size in bytes of what is still to be received; 0 if any message may come."""
        nbytes = max(1, min(missing, WAKE_BYTES))
        if nbytes != self._nbytes:
            self._nbytes = nbytes
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


class Striped:
    """A striped frame that arrives."""

    def __init__(self, memory: Tensor) -> None:
        """`memory` is that of the whole frame."""
        self.delivery = Delivery(memory, is_complete=False)
        self.missing = STREAMS
        """The number of shares that have not arrived in full."""


class Stream:
    """The receiving end of a stream. Its socket may come later than the first share is expected."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self._expected: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._wake = WakeMark()

    @property
    def is_expecting(self) -> bool:
        return bool(self._expected)

    def expect(self, memory: memoryview, on_complete: Callable[[], None]) -> bool:
        """Has the next share be received into some memory. Returns whether no other one is expected."""
        self._expected.append((memory, on_complete))
        return len(self._expected) == 1

    def read(self) -> None:
        """Receives what has arrived of the expected share. Raises `OSError`, and `EOFError` at the end of the
        stream."""
        assert self.sock is not None
        memory, on_complete = self._expected[0]
        try:
            count = self.sock.recv_into(memory)
        except BlockingIOError:
            return
        if not count:
            raise EOFError
        if count < len(memory):
            self._expected[0] = memory[count:], on_complete
        else:
            self._expected.popleft()
            on_complete()
        self._wake.set(self.sock, len(self._expected[0][0]) if self._expected else 0)


class Streams:
    """The receiving ends of all streams. Everything but `close` and `drop` runs on the thread that reads."""

    def __init__(self, reader: ProgressThread, on_end: Callable[[int, socket.socket], None]) -> None:
        """`on_end` is called with the job rank and the socket of a stream that has ended while a share is
        expected."""
        self._reader, self._on_end = reader, on_end
        self._streams: dict[tuple[int, int], Stream] = {}
        """(Job rank, number) -> the stream."""
        self._dropped: list[socket.socket] = []

    def expect(self, peer: int, shares: Sequence[memoryview], on_share: Callable[[], None]) -> None:
        """Has the shares of a frame be received on the streams of a peer."""
        for number, share in enumerate(shares, 1):
            stream = self._stream(peer, number)
            if stream.expect(share, on_share):
                self._begin(peer, stream)

    def attach(self, peer: int, number: int, sock: socket.socket) -> None:
        """Adds the socket of a stream. Raises `ProtocolError` if there can be none."""
        stream = self._stream(peer, number)
        if not 0 < number < STREAMS or stream.sock:
            raise ProtocolError(f"stream {number}")
        stream.sock = sock
        self._begin(peer, stream)

    def drop(self, peer: int) -> None:
        """Ends the streams of a peer. Their files stay open: the reading thread may be about to use them."""
        for key in [key for key in self._streams if key[0] == peer]:
            if sock := self._streams.pop(key).sock:
                self._dropped.append(sock)
                self._reader.end(sock)

    def close(self) -> None:
        for sock in (*(stream.sock for stream in self._streams.values()), *self._dropped):
            if sock:
                sock.close()

    def _stream(self, peer: int, number: int) -> Stream:
        return self._streams.setdefault((peer, number), Stream())

    def _begin(self, peer: int, stream: Stream) -> None:
        """Reads a stream from now on if a share is expected."""
        if stream.sock and stream.is_expecting:
            self._reader.add(stream.sock.fileno(), partial(self._read, peer, stream, stream.sock))

    def _read(self, peer: int, stream: Stream, sock: socket.socket) -> None:
        try:
            stream.read()
        except (EOFError, OSError):
            self._on_end(peer, sock)
        if not stream.is_expecting:
            self._reader.remove(sock.fileno())
