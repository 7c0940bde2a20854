"""Connects the TCP sockets of a run: plainly, or by TLS (`tls.py`) if `engine.NAME.secure` is set.

sockets = sockets_of(token, is_secure)
sock = sockets.client(sock)         a connected socket; waits for the handshake, within its time limit
sock = sockets.server(sock)         an accepted socket; reading it takes part in the handshake
"""

from __future__ import annotations

import socket
from functools import cache
from typing import Protocol


class Sockets(Protocol):
    def client(self, sock: socket.socket, waits: bool = True) -> socket.socket:
        """Returns the secured form of a connected socket. Without `waits`, `handshake` has to be called.
        Raises `OSError`."""

    def server(self, sock: socket.socket) -> socket.socket:
        """Returns the secured form of an accepted socket."""

    def handshake(self, sock: socket.socket) -> bool:
        """Goes on with the handshake of a socket of `client` that does not wait. Returns whether it is
        complete. Raises `OSError`."""


class Plain:
    """Sockets as they are."""

    def client(self, sock: socket.socket, waits: bool = True) -> socket.socket:
        return sock

    def server(self, sock: socket.socket) -> socket.socket:
        return sock

    def handshake(self, sock: socket.socket) -> bool:
        return True


PLAIN = Plain()


def sockets_of(token: str, is_secure: bool) -> Sockets:
    return _secure(token) if is_secure else PLAIN


@cache
def _secure(token: str) -> Sockets:
    from meshctl.network.tls import Secure  # imported on use, because it loads OpenSSL

    return Secure(token)
