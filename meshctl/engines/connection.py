"""The connection between a node process and the head: JSON objects, one per line, both ways.

    node -> head    {"node": 1, "version": "0.2.0", "package": DIGEST, "plan": DIGEST, "nonce": HEX}
    head -> node    {"nonce": HEX, "proof": HEX, "lease_s": 15.0}      or {"refused": "why"}
    node -> head    {"proof": HEX}

    head -> node    {"type": "attempt", "number": 2, "store": "HOST:PORT", "plan": JSON, "start": {...}, ...}
                    {"type": "signal", "attempt": 2, "signal": 15, "groups": null}
                    {"type": "stacks", "attempt": 2, "workers": [["train", 1, PID], ...]}
                    {"type": "leave", "is_final": true}, {"type": "beat"}, {"type": "clock", "sent": SECONDS}
                    {"type": "examine", "nonce": FILE, "needs": {...}, "peers": {"1": "HOST:PORT", ...}}
    node -> head    {"type": "exited", "attempt": 2, "group": "train", "code": 0}
                    {"type": "progress", "attempt": 2, "workers": [["train", 1, RECORD, SECONDS], ...],
                     "moved": [["train", 0], ...]}
                    {"type": "stacks", "attempt": 2, "workers": [["train", 1, STATE], ...]}
                    {"type": "stopped", "attempt": 2, "processes": [["the agent of train", PID], ...]}
                    {"type": "ended", "attempt": 2}, {"type": "beat", "pid": PID}
                    {"type": "refused", "error": "why"}
                    {"type": "clock", "sent": SECONDS, "at": SECONDS}: what the head sent, and its own clock
                    {"type": "download", "attempt": 2, "name": "ORG/MODEL", "received": BYTES, "total": BYTES}
                    {"type": "unfit", "attempt": 2, "error": "why"}: no worker of the attempt was started
                    {"type": "stop", "signal": 15}: the scheduler ends the job
                    {"type": "listens", "address": "HOST:PORT"}, {"type": "examined", "facts": {...}}

A proof is that of `network.connection`. Messages are plain data, and nothing is unpickled.
"""

from __future__ import annotations

import select
import socket
import time

from meshctl import __version__
from meshctl.engines.engine import CannotStart
from meshctl.network.addresses import split
from meshctl.network.connection import (
    TOKEN_VARIABLE,
    Connection,
    Message,
    ProtocolError,
    is_proof,
    new_nonce,
    proof_of,
)
from meshctl.package import our_digest

BEAT_S = 3.0
"""Seconds between two beats, if the lease is not much shorter."""
JOIN_S = 60.0
"""Time limit for a node process to reach the head and to authenticate, on engines without another one."""
CONNECT_S = 10.0
"""Time limit of one attempt to connect, and for an answer of the head."""
RETRY_S = 0.5
"""Seconds between two attempts to connect."""
MESSAGE_BYTES_MAX = 1 << 28


def beat_s(lease_s: float) -> float:
    """Returns the seconds between two beats for a lease; 0 is no lease."""
    return min(BEAT_S, lease_s / 4) if lease_s else BEAT_S


class Handshake:
    """The head's side of the authentication of one connection, message by message."""

    def __init__(self, connection: Connection, token: str, lease_s: float, digest: str) -> None:
        """`digest` is that of the plan, or empty; a node process with another plan is refused."""
        self.connection, self._token, self._lease_s, self._digest = connection, token, lease_s, digest
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
        if refusal := _difference(str(message.get("version"))[:40], message.get("package")):
            self.connection.send({"refused": refusal})
            raise ProtocolError("the versions differ")
        theirs = str(message.get("plan", ""))[:40]
        if theirs and self._digest and theirs != self._digest:
            self.connection.send(
                {"refused": f"the head runs the plan {self._digest}, and this node has {theirs}"}
            )
            raise ProtocolError("the plans differ")
        self.node = node
        self._expected = proof_of(self._token, "node", str(node), nonce, self._nonce)
        ours = proof_of(self._token, "head", str(node), nonce, self._nonce)
        self.connection.send({"nonce": self._nonce, "proof": ours, "lease_s": self._lease_s})
        return False


def _difference(version: str, package: object) -> str:
    """Returns why a node with this version and digest of the package cannot join; empty if it can. A process
    of the head sends no digest."""
    if version != __version__:
        return f"meshctl {__version__} runs the head, {version} runs this node"
    if package and package != our_digest():
        return f"the files of this node's meshctl {version} differ from those of the head's"
    return ""


STRANGERS_MAX = 256
"""Maximum number of peers that authenticate at the same time."""
STRANGER_S = 10.0
"""Seconds within which a peer must authenticate."""


class Arrivals:
    """The peers that have connected to a listener and have not proved yet that they have the token of the
    run. One that does not authenticate in time is dropped."""

    def __init__(
        self, listener: socket.socket, epoll: select.epoll, token: str, lease_s: float, digest: str
    ) -> None:
        listener.setblocking(False)
        self._listener, self._epoll, self._told = listener, epoll, (token, lease_s, digest)
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._is_accepting = True
        self._strangers: dict[int, Handshake] = {}
        """File -> the peer that has it."""

    def accept(self) -> None:
        """Accepts peers until `STRANGERS_MAX` authenticate. Further ones wait in the listener's queue."""
        while len(self._strangers) < STRANGERS_MAX:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            self._strangers[connection.fileno()] = Handshake(connection, *self._told)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._is_accepting = False
        self._epoll.unregister(self._listener.fileno())

    def __contains__(self, file: int) -> bool:
        return file in self._strangers

    def receive(self, file: int) -> tuple[Handshake | None, list[Message]]:
        """Goes on with the authentication of the peer with a file. Returns the peer once it has
        authenticated, and the messages that have arrived behind its proof."""
        stranger, messages = self._strangers[file], iter(list[Message]())
        try:
            messages = iter(stranger.connection.receive())
            has_proved = any(map(stranger.accepts, messages))  # the iterator keeps those behind the proof
        except ProtocolError:
            has_proved = False
            stranger.connection.close()
        if has_proved or stranger.connection.is_closed:
            self._forget(file)
        return (stranger, [*messages]) if has_proved else (None, [])

    def expire(self, now: float) -> None:
        """Drops the peers that have not authenticated in time."""
        for file, one in list(self._strangers.items()):
            if now - one.began > STRANGER_S:
                one.connection.close()
                self._forget(file)

    def _forget(self, file: int) -> None:
        """Forgets a peer that has authenticated or has ended, so that another one can."""
        del self._strangers[file]
        if not self._is_accepting:
            self._is_accepting = True
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.connection.close()


def join(
    head: str,
    node: int,
    token: str,
    digest: str = "",
    limit_s: float = JOIN_S,
    wait_s: float = 0.0,
) -> tuple[Connection, float]:
    """Connects a node process to the head. Returns the connection and the lease in seconds.

    A head that refuses connections, or whose name is unknown, is tried again for `wait_s` seconds: it may
    start later than the node. One that does not answer at all is given `limit_s` seconds. Raises
    `CannotStart` if the head cannot be reached, refuses, or does not prove that it has the token.
    """
    host, port = split(head)
    sock = _connected(head, host, port, node, limit_s, wait_s)
    connection = Connection(sock)
    try:
        return connection, _introduce(connection, head, node, token, digest)
    except CannotStart:
        connection.close()
        raise


def _connected(head: str, host: str, port: int, node: int, limit_s: float, wait_s: float) -> socket.socket:
    """Returns a socket that is connected to the head. Raises `CannotStart`."""
    began = time.monotonic()
    while True:
        left = limit_s - (time.monotonic() - began)
        try:
            return socket.create_connection((host, port), timeout=max(1.0, min(CONNECT_S, left)))
        except TimeoutError:
            reason, limit = "it does not answer", limit_s
            help = "look for a firewall between the two, and whether the head listens on this address"
        except socket.gaierror:
            reason, limit = f"the name {host} is unknown here", wait_s
            help = "give the head an IP address (`engine.NAME.head`, or `meshctl head --host`)"
        except OSError as error:
            reason, limit = (error.strerror or str(error)).lower(), wait_s
            help = "look whether the head still runs, and whether it listens on this address"
        waited = time.monotonic() - began
        if waited + RETRY_S > limit:
            waited_for = f" within {waited:.0f} s" if waited >= 1 else ""
            raise CannotStart(f"node {node} cannot reach the head at {head}{waited_for}: {reason}; {help}")
        time.sleep(RETRY_S)


def _introduce(connection: Connection, head: str, node: int, token: str, digest: str) -> float:
    """Authenticates this node process and the head to each other. Returns the lease in seconds. Raises
    `CannotStart`."""
    nonce = new_nonce()
    package = our_digest() if digest else ""
    connection.send(
        {"node": node, "version": __version__, "package": package, "plan": digest, "nonce": nonce}
    )
    until, messages = time.monotonic() + JOIN_S, list[Message]()
    try:
        while not messages:
            if not select.select([connection], [], [], max(0.0, until - time.monotonic()))[0]:
                raise ProtocolError(f"it does not answer within {JOIN_S:.0f} s; is it a head of meshctl?")
            messages = connection.receive()
            if connection.is_closed and not messages:
                raise ProtocolError("it has closed the connection")
    except ProtocolError as error:
        raise CannotStart(f"node {node} cannot join the head at {head}: {error}") from error
    answer = messages[0]
    if "refused" in answer:
        raise CannotStart(f"the head at {head} refuses node {node}: {str(answer['refused'])[:200]}")
    nonces = nonce, str(answer.get("nonce"))
    if not is_proof(answer.get("proof"), proof_of(token, "head", str(node), *nonces)):
        raise CannotStart(
            f"the head at {head} does not have the token of node {node}: {TOKEN_VARIABLE} or the file "
            "`.token` is of another run"
        )
    connection.message_bytes_max = MESSAGE_BYTES_MAX
    connection.send({"proof": proof_of(token, "node", str(node), *nonces)})
    return float(answer.get("lease_s", 0.0))
