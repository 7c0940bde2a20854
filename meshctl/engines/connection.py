"""The connection between a node process and the head: JSON objects, one per line, both ways.

    node -> head    {"node": 1, "version": "0.1.0", "nonce": HEX}
    head -> node    {"nonce": HEX, "proof": HEX, "lease_s": 15.0}      or {"refused": "why"}
    node -> head    {"proof": HEX}

    head -> node    {"type": "attempt", "number": 2, "store": "HOST:PORT", "plan": JSON, "start": {...}, ...}
                    {"type": "signal", "attempt": 2, "signal": 15, "groups": null}
                    {"type": "stacks", "attempt": 2, "workers": [["train", 1, PID], ...]}
                    {"type": "leave"}, {"type": "beat"}, {"type": "clock", "sent": SECONDS}
    node -> head    {"type": "exited", "attempt": 2, "group": "train", "code": 0}
                    {"type": "progress", "attempt": 2, "workers": [["train", 1, RECORD, SECONDS], ...],
                     "moved": [["train", 0], ...]}
                    {"type": "stacks", "attempt": 2, "workers": [["train", 1, STATE], ...]}
                    {"type": "stopped", "attempt": 2, "processes": [["the agent of train", PID], ...]}
                    {"type": "ended", "attempt": 2}, {"type": "refused", "error": "why"}, {"type": "beat"}
                    {"type": "clock", "sent": SECONDS, "at": SECONDS}: what the head sent, and its own clock
                    {"type": "download", "attempt": 2, "name": "ORG/MODEL", "received": BYTES, "total": BYTES}
                    {"type": "unfit", "attempt": 2, "error": "why"}: no worker of the attempt was started

A proof is that of `run.authentication`. Messages are plain data, and nothing is unpickled.
"""

from __future__ import annotations

import select
import socket
import time

from meshctl.engines.engine import CannotStart
from meshctl.run.authentication import is_proof, new_nonce, proof_of
from meshctl.run.connection import Connection, Message, ProtocolError

BEAT_S = 3.0
"""Seconds between two beats."""
JOIN_S = 60.0
"""Time limit for a node process to reach the head and to authenticate."""
MESSAGE_BYTES_MAX = 1 << 28


def version() -> str:
    """Returns the version of meshctl, which must be the same on all nodes."""
    import importlib.metadata  # imported on use, because the import is slow

    try:
        return importlib.metadata.version("meshctl")
    except importlib.metadata.PackageNotFoundError:
        return ""


class Handshake:
    """The head's side of the authentication of one connection, message by message."""

    def __init__(self, connection: Connection, token: str, lease_s: float) -> None:
        self.connection, self._token, self._lease_s = connection, token, lease_s
        self.began = time.monotonic()
        self._nonce, self._expected = new_nonce(), ""
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
        self._expected = proof_of(self._token, "node", str(node), nonce, self._nonce)
        ours = proof_of(self._token, "head", str(node), nonce, self._nonce)
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
    nonce = new_nonce()
    connection.send({"node": node, "version": version(), "nonce": nonce})
    try:
        answer = _answer(connection)
    except ProtocolError as error:
        raise CannotStart(f"the head at {head} cannot be reached: {error}") from error
    if "refused" in answer:
        raise CannotStart(str(answer["refused"]))
    nonces = nonce, str(answer.get("nonce"))
    if not is_proof(answer.get("proof"), proof_of(token, "head", str(node), *nonces)):
        raise CannotStart(f"the head at {head} does not have the token of this run")
    connection.message_bytes_max = MESSAGE_BYTES_MAX
    connection.send({"proof": proof_of(token, "node", str(node), *nonces)})
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
