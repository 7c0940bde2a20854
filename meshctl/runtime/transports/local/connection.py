"""Connections between processes of one node, the socket that accepts them, and the queue that sends on them
without waiting. A message is one datagram of a unix socket, with files passed by SCM_RIGHTS."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from torch import Tensor

from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX
from meshctl.runtime.transports.peers import HEAD, Message, PeerConnection
from meshctl.runtime.transports.progress import ProgressThread

MAX_FILES = 8
"""The most files of one message."""
_MAX_BYTES = HEAD.size + INLINE_MAX
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_FILES)
_TRUNCATED, _CLOSE_ON_EXEC = int(socket.MSG_CTRUNC), int(socket.MSG_CMSG_CLOEXEC)
_PEER_HAS_ENDED = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}
"""Errors of a send where the peer has ended or this process has closed the socket."""
_CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid of a peer, as SO_PEERCRED has them."""


class TooManyFiles(OSError):
    """This process has too many open files to receive those of a message."""


def listen() -> socket.socket:
    """Returns the socket at which a job rank accepts connections from the other processes of its node."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind("")  # the kernel chooses a name in the abstract namespace
    sock.listen(4096)
    sock.setblocking(False)
    return sock


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yields all pending connections of this user. Those of others are closed."""
    with suppress(BlockingIOError):
        while True:
            sock, _ = listener.accept()
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(peer)
            if uid == os.getuid():
                yield sock
            else:
                sock.close()


class Connection(PeerConnection):
    """One connection to a peer of this node."""

    def __init__(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> None:
        super().__init__(sock, job_rank, generation)
        sock.setblocking(False)
        self.backlog: deque[tuple[bytes, Sequence[int]]] = deque()
        """Messages, with files to pass, that the socket has not taken yet. The files belong to the
        backlog."""
        self.out_of_band: list[Tensor | int] = []
        """The out-of-band tensors of the next frame, which arrive ahead of it. A tensor that a transfer
        brings is given as its size in bytes."""

    @property
    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def receive(self) -> Message | None:
        """Returns the next message, None at the end of the connection; the message's files are the caller's.
        Raises `BlockingIOError` if there is none yet, `ConnectionResetError`, `TooManyFiles`, and
        `struct.error` for a malformed message."""
        data, ancillary, flags, _ = self.sock.recvmsg(_MAX_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        files = _files_in(ancillary) if ancillary else []
        try:
            if flags & _TRUNCATED and len(files) < MAX_FILES:
                raise TooManyFiles
            if not data:
                return None
            kind, generation, tag, nbytes = HEAD.unpack_from(data)
            if nbytes != len(data) - HEAD.size:
                raise struct.error(f"a body of {len(data) - HEAD.size} bytes whose head states {nbytes}")
            return Message(kind, generation, tag, data[HEAD.size :], files)
        except BaseException:
            close_all(files)
            raise


class SendQueue:
    """Sends messages of all connections in order. Any thread may push, also a finalizer in the middle of
    another push. What a socket does not take at once is its backlog, which a thread sends later."""

    def __init__(
        self,
        on_error: Callable[[Connection, OSError], None],
        on_thread_error: Callable[[Exception], None],
    ) -> None:
        self._on_error, self._on_thread_error = on_error, on_thread_error
        self._queue: deque[tuple[Connection, bytes, Sequence[int]]] = deque()
        self._lock = threading.Lock()
        self._backlogged: set[Connection] = set()
        self._changed = threading.Condition(self._lock)
        """Notified when a connection has no backlog any more."""
        self._thread: ProgressThread | None = None

    def push(self, connection: Connection, message: bytes, files: Sequence[int] = ()) -> None:
        """Queues a message with duplicates of `files` to pass, and sends what can be sent at once. Threads
        that find the lock taken only queue, so the queue is checked again after the lock is released."""
        self._queue.append((connection, message, [os.dup(file) for file in files]))
        self._flush()

    def _flush(self) -> None:
        queue, lock = self._queue, self._lock
        while queue and lock.acquire(False):
            try:
                while queue:
                    connection, message, files = queue.popleft()
                    if connection.backlog or not self._transmit(connection, message, files):
                        self._keep(connection, message, files)
            finally:
                lock.release()

    def _transmit(self, connection: Connection, message: bytes, files: Sequence[int]) -> bool:
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
        close_all(files)
        return True

    def _keep(self, connection: Connection, message: bytes, files: Sequence[int]) -> None:
        """Adds a message to the backlog of its connection. The caller holds the lock."""
        connection.backlog.append((message, files))
        if self._thread is None:
            self._thread = ProgressThread("backlog", select.EPOLLOUT, self._on_thread_error)
            self._thread.start()
        if connection not in self._backlogged:
            self._backlogged.add(connection)
            self._thread.add(connection.sock.fileno(), partial(self._drain, connection))

    def _drain(self, connection: Connection) -> None:
        """Sends what a socket takes of its backlog. Runs on the thread."""
        with self._lock:
            while connection.backlog and self._transmit(connection, *connection.backlog[0]):
                connection.backlog.popleft()
            if not connection.backlog:
                self._end_backlog(connection)
        self._flush()

    def drop(self, connection: Connection) -> None:
        """Forgets the backlog of a connection, before its socket is closed."""
        with self._lock:
            while connection.backlog:
                close_all(connection.backlog.popleft()[1])
            self._end_backlog(connection)
        self._flush()

    def _end_backlog(self, connection: Connection) -> None:
        """The caller holds the lock."""
        if connection in self._backlogged:
            assert self._thread
            self._thread.remove(connection.sock.fileno())
            self._backlogged.remove(connection)
            self._changed.notify_all()

    def finish(self) -> None:
        """Waits until every message has left."""
        while True:
            self._flush()
            with self._changed:
                self._changed.wait_for(lambda: not self._backlogged)
                if not self._queue:
                    return

    def close(self) -> None:
        """Ends the thread. All backlogs have been dropped."""
        if self._thread:
            self._thread.close()


def close_all(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _files_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return list(files)
