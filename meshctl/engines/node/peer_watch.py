"""The connections of a node process to those of other nodes. Workers of two nodes may need each other while
both nodes reach the head: a firewall between them would leave torch's collectives waiting for ever.

    caller -> peer    {"node": 1, "to": 2, "nonce": HEX}
    peer -> caller    {"nonce": HEX, "proof": HEX}
    caller -> peer    {"proof": HEX, "filling": "..."}
    peer -> caller    {"beat": 0}
    caller -> peer    {"beat": 0}, again and again; the peer answers each one

Each node calls its peers and is called by them, so a firewall in one direction is noticed too. A peer that
does not answer is called again and again, because a new connection recovers faster than one whose packets
were lost. The watch has a round for each attempt: it reports once that all peers have answered, and each peer
that has been silent for longer than the limit.
"""

from __future__ import annotations

import math
import os
import select
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.connection import beat_s
from meshctl.network.addresses import family_of, joined, listen, split
from meshctl.network.authentication import is_proof, new_nonce, proof_of
from meshctl.network.connection import (
    Connection,
    Message,
    ProtocolError,
    host_of,
)
from meshctl.network.strangers import Strangers, is_crowded, overdue

REACH_S = 10.0
"""Seconds within which a peer must answer before the first step."""
CALL_S = 3.0
"""Seconds after which a call without an answer is made anew."""
POLL_S = 0.5
"""Seconds between two looks at silent peers."""
FILLING = "." * (1 << 16)
"""A message that is longer than a packet: some paths lose only large packets."""
GREETING_BYTES_MAX = len(FILLING) + 4096
CALLER, CALLED = "calling node", "called node"
"""The roles in proofs."""


class Call:
    """The connection that this node opens to a peer, again and again until the peer answers."""

    def __init__(self, own: int, peer: int, address: str, token: str, now: float) -> None:
        self.peer, self.address = peer, address
        self._own, self._token = own, token
        self.last_seen, self.has_answered = now, False
        """The time of the peer's last answer, and true once it has answered."""
        self.problem = "it does not answer"
        self._socket: socket.socket | None = None
        """The socket while it connects."""
        self._connection: Connection | None = None
        self._nonce, self._expects_beat = "", False
        self._began, self._beat = -math.inf, 0.0

    def ask(self, now: float) -> None:
        """Awaits an answer from now on."""
        self.last_seen, self.has_answered, self._beat = now, False, -math.inf

    @property
    def reading(self) -> list[Any]:
        return [self._connection] if self._connection else []

    @property
    def writing(self) -> list[Any]:
        """The files that become writable when the call goes on."""
        unsent = [self._connection] if self._connection and self._connection.has_unsent else []
        return [self._socket] if self._socket else unsent

    def poll(self, now: float, interval_s: float) -> None:
        """Goes on with the call. `interval_s` are the seconds between two beats."""
        is_new = self._began == -math.inf
        if is_new or now - max(self._began, self.last_seen) > CALL_S + interval_s:
            self._begin(now)
        if self._socket:
            self._connect(self._socket)
        if self._connection:
            self._exchange(self._connection, now, interval_s)

    def _begin(self, now: float) -> None:
        self.close()
        host, port = split(self.address)
        self._began, self._nonce, self._expects_beat = now, new_nonce(), False
        try:
            self._socket = socket.socket(family_of(host), socket.SOCK_STREAM)
            self._socket.setblocking(False)
            with suppress(BlockingIOError):
                self._socket.connect((host, port))
        except OSError as error:
            self._give_up(error)

    def _connect(self, sock: socket.socket) -> None:
        if not select.select([], [sock], [], 0)[1]:
            return
        if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._give_up(OSError(number, os.strerror(number)))
            return
        self._socket, self._connection = None, Connection(sock)
        self._connection.send({"node": self._own, "to": self.peer, "nonce": self._nonce})

    def _give_up(self, error: OSError) -> None:
        self.problem = (error.strerror or str(error)).lower()
        self.close()

    def _exchange(self, connection: Connection, now: float, interval_s: float) -> None:
        try:
            for message in connection.receive():
                self._on_message(connection, message, now)
        except ProtocolError as error:
            self.problem = str(error)
            connection.close()
        connection.flush()
        if connection.is_closed:
            self.close()
        elif self._expects_beat and now - self._beat >= interval_s:
            self._beat = now
            connection.send({"beat": 0})

    def _on_message(self, connection: Connection, message: Message, now: float) -> None:
        if not self._expects_beat:
            nonces = self._nonce, str(message.get("nonce"))
            words = str(self._own), str(self.peer), *nonces
            if not is_proof(message.get("proof"), proof_of(self._token, CALLED, *words)):
                raise ProtocolError("something else answers there, without the token of the run")
            self._expects_beat, self._beat = True, now
            proof = proof_of(self._token, CALLER, *words)
            connection.send({"proof": proof, "filling": FILLING})
            return
        self.last_seen, self.has_answered, self.problem = now, True, "it does not answer"

    def close(self) -> None:
        for one in (self._socket, self._connection):
            if one:
                one.close()
        self._socket = self._connection = None


class Caller:
    """A connection that a peer has opened."""

    def __init__(self, own: int, connection: Connection, token: str, now: float) -> None:
        self.connection, self._own, self._token = connection, own, token
        self.is_known, self.is_wrong, self.began = False, False, now
        self._expected, self._nonce = "", new_nonce()
        connection.message_bytes_max = GREETING_BYTES_MAX

    def poll(self) -> None:
        """Answers what has arrived."""
        try:
            for message in self.connection.receive():
                self._on_message(message)
            has_ended = self.connection.is_broken or (self.connection.is_closed and self._expected)
            self.is_wrong = bool(has_ended and not self.is_known)
        except ProtocolError:
            self.is_wrong = True
        self.connection.flush()

    def _on_message(self, message: Message) -> None:
        if self.is_known:
            self.connection.send({"beat": 0})
        elif self._expected:
            if not is_proof(message.get("proof"), self._expected):
                raise ProtocolError("the token is wrong")
            self.is_known = True
            self.connection.send({"beat": 0})
        else:
            if message.get("to") != self._own:
                raise ProtocolError("this is another node")
            words = str(message.get("node")), str(self._own), str(message.get("nonce")), self._nonce
            self._expected = proof_of(self._token, CALLER, *words)
            self.connection.send({"nonce": self._nonce, "proof": proof_of(self._token, CALLED, *words)})


@dataclass(frozen=True)
class Unreachable:
    """A peer that this node does not reach."""

    peer: int
    address: str
    seconds: float
    problem: str


class PeerWatch:
    def __init__(self, node: int, host: str, token: str, lease_s: float) -> None:
        """Listens at the IP address `host` only. Raises `OSError`."""
        self._node, self._token, self._lease_s = node, token, lease_s
        self._listener = listen(host)
        self._listener.setblocking(False)
        self.address = joined(host, self._listener.getsockname()[1])
        self.attempt = 0
        """The attempt of the present round."""
        self._calls: dict[int, Call] = {}
        self._callers: list[Caller] = []
        self._reported: set[int] = set()
        self._polled = -math.inf
        self._is_awaited = False
        """True if the round has not been reported as reached."""
        self.strangers = Strangers()
        """The connections that were dropped because they did not prove that they have the token."""

    def begin(self, attempt: int, peers: Mapping[int, str], now: float) -> None:
        """Begins the round of an attempt: `peers` are the addresses of the other nodes. Known connections go
        on."""
        for node, call in list(self._calls.items()):
            if peers.get(node) != call.address:
                self._calls.pop(node).close()
        for node, address in peers.items():
            if node not in self._calls:
                self._calls[node] = Call(self._node, node, address, self._token, now)
            self._calls[node].ask(now)
        self._reported.clear()
        self.attempt, self._is_awaited = attempt, True

    @property
    def reading(self) -> list[Any]:
        """The files that become readable when something is to be done."""
        calls = [one for call in self._calls.values() for one in call.reading]
        return [self._listener, *calls, *(caller.connection for caller in self._callers)]

    @property
    def writing(self) -> list[Any]:
        callers = [one.connection for one in self._callers if one.connection.has_unsent]
        return [*callers, *(one for call in self._calls.values() for one in call.writing)]

    def is_due(self, now: float, ready: Collection[Any]) -> bool:
        """Returns whether `poll` has something to do: one of the files in `ready` belongs to the watch, or it
        is time."""
        return now - self._polled >= POLL_S or not {*ready}.isdisjoint([*self.reading, *self.writing])

    def poll(self, now: float, is_late: bool = False) -> Iterator[Unreachable | None]:
        """Yields the peers that have become unreachable, and None once all peers have answered in this round.
        `is_late`: this process was itself stopped, so that silence is not the fault of a peer."""
        self._polled = now
        self._answer(now)
        for call in self._calls.values():
            if is_late:
                call.last_seen = now
            call.poll(now, beat_s(self._lease_s))
            limit_s = self._lease_s if call.has_answered else REACH_S
            silent_s = now - call.last_seen
            if limit_s and silent_s > limit_s and call.peer not in self._reported:
                self._reported.add(call.peer)
                yield Unreachable(call.peer, call.address, silent_s, call.problem)
        if self._is_awaited and all(call.has_answered for call in self._calls.values()):
            self._is_awaited = False
            yield None

    @property
    def _unknown(self) -> list[Caller]:
        return [caller for caller in self._callers if not caller.is_known]

    def _answer(self, now: float) -> None:
        with suppress(OSError):
            sock, _ = self._listener.accept()
            if is_crowded(self._unknown):
                self.strangers.note(host_of(sock))
                sock.close()
            else:
                self._callers.append(Caller(self._node, Connection(sock), self._token, now))
        for caller in list(self._callers):
            caller.poll()
        late = overdue(self._unknown, now)
        for caller in list(self._callers):
            if caller.is_wrong or caller in late:
                caller.connection.close()
                self.strangers.note(caller.connection.peer_host)
            if caller.connection.is_closed:
                self._callers.remove(caller)

    def close(self) -> None:
        for call in self._calls.values():
            call.close()
        for caller in self._callers:
            caller.connection.close()
        self._listener.close()
