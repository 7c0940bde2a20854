"""A socket that carries JSON objects, one per line, both ways.

It never blocks: bytes that cannot be sent at once are buffered until the socket is writable.

Two processes of a run authenticate each other by proofs: an HMAC-SHA256 of the nonces of both under the token
of the run. Each side learns that the other has the token, and the token itself is never sent.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

HANDSHAKE_BYTES_MAX = 4096
"""Maximum size of a message from a peer that has not authenticated yet."""
RECEIVE_BYTES = 1 << 16
TOKEN_VARIABLE = "MESHCTL_TOKEN"
"""The environment variable that holds the token of a run. Workers and node processes that are started by exec
read it and remove it."""


class ProtocolError(Exception):
    """The peer has sent bytes that are not a valid message."""


class Connection:
    """A socket that sends and receives messages without ever blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._received, self._unsent = bytearray(), bytearray()
        self.message_bytes_max = HANDSHAKE_BYTES_MAX
        self.is_closed = False
        self.peer_host = host_of(sock)
        """The IP address of the other end; empty if it is unknown."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def own_host(self) -> str:
        """The IP address of this end."""
        host: str = self._socket.getsockname()[0]
        return host

    @property
    def has_unsent(self) -> bool:
        """True if bytes are buffered, which `flush` sends once the socket is writable."""
        return bool(self._unsent) and not self.is_closed

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_bytes(encoded(message))

    def send_bytes(self, data: bytes) -> None:
        """Sends an encoded message."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent and not self.is_closed:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> list[Message]:
        """Returns the messages that have arrived completely. Sets `is_closed` if the peer has closed the
        connection.

        Raises `ProtocolError` for bytes that are not a valid message.
        """
        try:
            while part := self._socket.recv(RECEIVE_BYTES):
                self._received += part
                if len(self._received) > self.message_bytes_max:
                    raise ProtocolError("the message is too long")
            self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [parsed(bytes(line)) for line in lines]

    def end(self) -> None:
        """Tells the peer that nothing more is sent. What it still sends can be received."""
        self.flush()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()


def encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def host_of(sock: socket.socket) -> str:
    """Returns the IP address of the peer of a socket; empty if it is unknown."""
    try:
        return str(sock.getpeername()[0]) if sock.family != socket.AF_UNIX else ""
    except OSError:
        return ""


def parsed(line: bytes) -> Message:
    """Raises `ProtocolError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the message is not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("the message is not a JSON object")
    return message


def new_token() -> str:
    return secrets.token_hex(32)


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof_of(token: str, *words: str) -> str:
    """Returns the proof over `words`: the role of the side that proves, and the nonces of both sides."""
    return hmac.new(token.encode(), "\0".join(words).encode(), "sha256").hexdigest()


def is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
