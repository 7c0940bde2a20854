"""The connection between a node process and the head: JSON objects, one per line, both ways.

    node -> head    {"node": 1, "version": "0.1.0", "nonce": HEX}
    head -> node    {"nonce": HEX, "proof": HEX, "lease_s": 15.0}      or {"refused": "why"}
    node -> head    {"proof": HEX}

    head -> node    {"type": "attempt", "number": 2, "store": "HOST:PORT", "plan": JSON, "start": {...}, ...}
                    {"type": "signal", "attempt": 2, "signal": 15, "groups": null}
                    {"type": "leave"}, {"type": "beat"}
    node -> head    {"type": "exited", "attempt": 2, "group": "train", "code": 0}
                    {"type": "progress", "attempt": 2, "workers": [["train", 1, RECORD], ...]}
                    {"type": "ended", "attempt": 2}, {"type": "refused", "error": "why"}, {"type": "beat"}
                    {"type": "download", "attempt": 2, "name": "ORG/MODEL", "received": BYTES, "total": BYTES}
                    {"type": "unfit", "attempt": 2, "error": "why"}: no worker of the attempt was started

A proof is an HMAC-SHA256 of both nonces under the token of the run, so that each side knows that the other
has the token, and the token itself is never sent. Messages are plain data, and nothing is unpickled. A
connection never blocks: bytes that cannot be sent at once are buffered until the socket is writable.
"""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from meshctl.engines.engine import CannotStart

Message = dict[str, Any]

TOKEN_VARIABLE = "MESHCTL_TOKEN"
"""The environment variable that holds the token of a run. Node processes that are started by exec read it."""
BEAT_S = 3.0
"""Seconds between two beats."""
JOIN_S = 60.0
"""Time limit for a node process to reach the head and to authenticate."""
HANDSHAKE_BYTES_MAX = 4096
"""Maximum size of a message from a peer that has not authenticated yet."""
MESSAGE_BYTES_MAX = 1 << 28
RECEIVE_BYTES = 1 << 16


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

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes are buffered, which `flush` sends once the socket is writable."""
        return bool(self._unsent) and not self.is_closed

    def send(self, message: Mapping[str, Any]) -> None:
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
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
        return [_parsed(bytes(line)) for line in lines]

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the message is not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("the message is not a JSON object")
    return message


def new_token() -> str:
    return secrets.token_hex(32)


def version() -> str:
    """Returns the version of meshctl, which must be the same on all nodes."""
    import importlib.metadata  # imported on use, because the import is slow

    try:
        return importlib.metadata.version("meshctl")
    except importlib.metadata.PackageNotFoundError:
        return ""


def proof_of(token: str, role: str, node: int, *nonces: str) -> str:
    text = "\0".join((role, str(node), *nonces))
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


class Handshake:
    """The head's side of the authentication of one connection, message by message."""

    def __init__(self, connection: Connection, token: str, lease_s: float) -> None:
        self.connection, self._token, self._lease_s = connection, token, lease_s
        self.began = time.monotonic()
        self._nonce, self._expected = secrets.token_hex(16), ""
        self.node = -1

    def accepts(self, message: Message) -> bool:
        """Processes one message of the peer; returns True once the peer has proved that it has the token.
        Raises `ProtocolError` for an invalid message."""
        if self._expected:
            if not is_proof(message.get("proof"), self._expected):
                raise ProtocolError("the token is wrong")
            self.connection.message_bytes_max = MESSAGE_BYTES_MAX
            return True
        node, nonce = message.get("node"), message.get("nonce")
        if not isinstance(node, int) or not isinstance(nonce, str):
            raise ProtocolError("this is not a node process")
        if message.get("version") != version():
            theirs = str(message.get("version"))[:40]
            self.connection.send({"refused": f"meshctl {version()} runs the head, {theirs} runs this node"})
            raise ProtocolError("the versions differ")
        self.node = node
        self._expected = proof_of(self._token, "node", node, nonce, self._nonce)
        ours = proof_of(self._token, "head", node, nonce, self._nonce)
        self.connection.send({"nonce": self._nonce, "proof": ours, "lease_s": self._lease_s})
        return False


def join(head: str, node: int, token: str) -> tuple[Connection, float]:
    """Connects a node process to the head. Returns the connection and the lease in seconds.

    Raises `CannotStart` if the head cannot be reached, refuses, or does not prove that it has the token.
    """
    host, _, port = head.rpartition(":")
    try:
        connection = Connection(socket.create_connection((host, int(port)), timeout=JOIN_S))
    except OSError as error:
        raise CannotStart(f"the head at {head} cannot be reached: {error}") from error
    try:
        return connection, _introduce(connection, head, node, token)
    except CannotStart:
        connection.close()
        raise


def _introduce(connection: Connection, head: str, node: int, token: str) -> float:
    """Authenticates this node process and the head to each other. Returns the lease in seconds. Raises
    `CannotStart`."""
    nonce = secrets.token_hex(16)
    connection.send({"node": node, "version": version(), "nonce": nonce})
    try:
        answer = _answer(connection)
    except ProtocolError as error:
        raise CannotStart(f"the head at {head} cannot be reached: {error}") from error
    if "refused" in answer:
        raise CannotStart(str(answer["refused"]))
    nonces = nonce, str(answer.get("nonce"))
    if not is_proof(answer.get("proof"), proof_of(token, "head", node, *nonces)):
        raise CannotStart(f"the head at {head} does not have the token of this run")
    connection.message_bytes_max = MESSAGE_BYTES_MAX
    connection.send({"proof": proof_of(token, "node", node, *nonces)})
    return float(answer.get("lease_s", 0.0))


def _answer(connection: Connection) -> Message:
    """Waits for the next message of the head. Raises `ProtocolError` if none arrives in time or the head
    closes the connection."""
    if not select.select([connection], [], [], JOIN_S)[0]:
        raise ProtocolError(f"no answer within {JOIN_S:.0f} s")
    messages = connection.receive()
    while not messages and not connection.is_closed:
        select.select([connection], [], [], JOIN_S)
        messages = connection.receive()
    if not messages:
        raise ProtocolError("it has closed the connection")
    return messages[0]
