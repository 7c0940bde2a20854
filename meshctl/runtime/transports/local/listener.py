"""The socket at which a job rank accepts connections from the other processes of its node."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from meshctl.runtime.transports.local.connection import Address

_CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid of a peer, as SO_PEERCRED has them."""


class Listener:
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
