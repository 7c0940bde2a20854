"""Connections between processes of one node, the socket that accepts them, and the queue that sends on them
without waiting."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX
from meshctl.runtime.transports.local.messages import HEAD, HEAD_BYTES, MAX_FILES, Message

_MAX_BYTES = HEAD_BYTES + INLINE_MAX
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_FILES)
_TRUNCATED, _CLOSE_ON_EXEC = int(socket.MSG_CTRUNC), int(socket.MSG_CMSG_CLOEXEC)
_PEER_HAS_ENDED = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}
"""Errors of a send where the peer has ended or this process has closed the socket."""
_CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid of a peer, as SO_PEERCRED has them."""


@dataclass(frozen=True)
class Address:
    """The address at which a job rank listens."""

    name: bytes
    """The name of its socket in the abstract namespace."""
    pid: int

    def __str__(self) -> str:
        return f"{self.pid} {self.name.hex()}"

    @classmethod
    def parse(cls, text: str) -> Address:
        pid, _, name = text.partition(" ")
        return cls(bytes.fromhex(name), int(pid))


class TooManyFiles(OSError):
    """This process has too many open files to receive those of a message."""


class Listener:
    """The socket at which a job rank accepts connections from the other processes of its node."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.bind("")
        self._sock.listen(4096)
        self._sock.setblocking(False)
        self.address = Address(self._sock.getsockname(), os.getpid())

    def accept(self) -> Iterator[socket.socket]:
        """Yields all pending connections of this user. Those of others are closed."""
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._sock.accept()
                peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                _, uid, _ = _CREDENTIALS.unpack(peer)
                if uid == os.getuid():
                    yield sock
                else:
                    sock.close()

    def fileno(self) -> int:
        """Returns the file of the socket; -1 after `close`."""
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


class Connection:
    """One connection to a peer."""

    def __init__(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> None:
        """`job_rank` is the peer's; -1 until an accepted connection has introduced itself."""
        self.sock, self.job_rank, self.generation = sock, job_rank, generation
        self.is_outgoing = job_rank >= 0
        """True if this process has opened it."""
        self.actions: Mapping[int, Callable[..., None]] = {}
        """Kind of message -> the action of the transport."""
        sock.setblocking(False)
        self.backlog: deque[tuple[bytes, Sequence[int]]] = deque()
        """Messages, with files to pass, that the socket has not taken yet. The files belong to the
        backlog."""
        self.has_left = False
        """True if the peer has said goodbye."""
        self.out_of_band: list[Tensor | int] = []
        """The out-of-band tensors of the next frame, which arrive ahead of it. A tensor that a transfer
        brings is given as its size in bytes."""

    def drop_all(self) -> None:
        """Ends the connection to a peer that has left. What is sent to it from now on is dropped."""
        self.has_left = True
        self.sock.close()

    @property
    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def receive(self) -> Message | None:
        """Returns the next message, None at the end of the connection; the message's files are the caller's.
        Raises `BlockingIOError` if there is none yet, `ConnectionResetError`, `TooManyFiles`, and
        `struct.error` for a malformed message."""
        data, ancillary, flags, _ = self.sock.recvmsg(_MAX_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        if not ancillary and not flags & _TRUNCATED:
            return _message_in(data) if data else None
        files = _files_in(ancillary)
        try:
            if flags & _TRUNCATED and len(files) < MAX_FILES:
                raise TooManyFiles
            return _message_in(data, files) if data else None
        except BaseException:
            close_all(files)
            raise


class SendQueue:
    """Sends messages of all connections in order. Any thread may push, also a finalizer in the middle of
    another push. What a socket does not take at once is its backlog, which a thread sends later."""

    def __init__(self, on_error: Callable[[Connection, OSError], None]) -> None:
        self._on_error = on_error
        self._queue: deque[tuple[Connection, bytes, Sequence[int]]] = deque()
        self._lock = threading.Lock()
        self._backlogged: dict[Connection, None] = {}
        self._thread: threading.Thread | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def push(self, connection: Connection, message: bytes, files: Sequence[int] = ()) -> None:
        """Queues a message with duplicates of `files` to pass, and sends what can be sent at once."""
        if files or self._queue or not self._lock.acquire(False):
            self._queue.append((connection, message, [os.dup(file) for file in files]))
        else:
            try:
                if connection.backlog or not self.transmit(connection, message):
                    self._keep(connection, message, ())
            finally:
                self._lock.release()
        if self._queue:
            self._flush()

    def transmit(self, connection: Connection, message: bytes, files: Sequence[int] = ()) -> bool:
        """Sends a message without waiting. Returns False if the socket is full. Otherwise the message is
        sent, or dropped because the peer has ended, and the files are closed."""
        try:
            if files:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
                connection.sock.sendmsg([message], ancillary)
            else:
                connection.sock.send(message)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _PEER_HAS_ENDED:  # the end of a peer is read from its connection
                self._on_error(connection, error)
        if files:
            close_all(files)
        return True

    def finish(self) -> None:
        """Waits until every message has left. A message that is queued while another thread sends is sent by
        that thread a little later."""
        while True:
            self._flush()
            with self._lock:
                thread = self._thread
                if thread is None and not self._queue:
                    return
            if thread:
                thread.join()

    def close(self) -> None:
        if self._thread is None:
            os.close(self._bell)

    def _flush(self) -> None:
        """Sends the queued messages, unless another thread does. Threads that find the lock taken only queue,
        so the queue is checked again after the lock is released."""
        queue, lock = self._queue, self._lock
        while queue and lock.acquire(False):
            try:
                while queue:
                    connection, message, files = queue.popleft()
                    if connection.backlog or not self.transmit(connection, message, files):
                        self._keep(connection, message, files)
            finally:
                lock.release()

    def _keep(self, connection: Connection, message: bytes, files: Sequence[int]) -> None:
        """Adds a message to the backlog of its connection. The caller holds the lock."""
        connection.backlog.append((message, files))
        self._backlogged[connection] = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._retry_all, daemon=True, name="backlog")
            self._thread.start()
        else:
            os.eventfd_write(self._bell, 1)

    def _retry_all(self) -> None:
        """Sends all backlogs as the sockets take them. Runs on `_thread`, and ends when they are empty."""
        while True:
            with self._lock:
                files = self._retry()
                if not files:
                    self._thread = None
            self._flush()
            if not files:
                return
            ready = select.poll()
            ready.register(self._bell, select.POLLIN)
            for file in files:
                ready.register(file, select.POLLOUT)
            if self._bell in dict(ready.poll()):
                os.eventfd_read(self._bell)

    def _retry(self) -> list[int]:
        """Sends what the sockets take of their backlogs. Returns the files of the sockets that are still
        full."""
        for connection in [*self._backlogged]:
            while connection.backlog and self.transmit(connection, *connection.backlog[0]):
                connection.backlog.popleft()
            if not connection.backlog:
                del self._backlogged[connection]
        return [file for connection in self._backlogged if (file := connection.sock.fileno()) >= 0]


def close_all(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _message_in(data: bytes, files: Sequence[int] = ()) -> Message:
    """Returns the message in a datagram. Raises `struct.error`."""
    return tuple.__new__(Message, (*HEAD.unpack_from(data), data[HEAD_BYTES:], files))


def _files_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return list(files)
