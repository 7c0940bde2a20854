"""Sockets of TLS 1.3, for which both ends need the key of the run (`certificate.py`)."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any

from meshctl.network.certificate import certificate_of, pem_of


class SecureSocket(ssl.SSLSocket):
    """A socket of TLS with the behaviour of a plain one: a call that would wait raises `BlockingIOError`."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def shutdown(self, how: int) -> None:
        """Ends the connection below TLS, so that what the peer has sent can still be read."""
        socket.socket.shutdown(self, how)


class Secure:
    """Sockets of TLS. The key and the certificate come from memory, never from a file."""

    def __init__(self, token: str) -> None:
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, token)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, token)

    def client(self, sock: socket.socket, waits: bool = True) -> socket.socket:
        return self._client.wrap_socket(sock, do_handshake_on_connect=waits)

    def server(self, sock: socket.socket) -> socket.socket:
        return self._server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def handshake(self, sock: socket.socket) -> bool:
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True


def _context(protocol: int, token: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.sslsocket_class = SecureSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # hosts have any address; the certificate is that of the run alone
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate_of(token))
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no connection is resumed
    file = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(file, pem_of(token).encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
