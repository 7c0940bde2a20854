"""The check that the nodes of a run reach one another, before its first worker starts. Workers of two nodes
may need each other while both reach the head: a firewall between them would leave them waiting.

    door = Door(node, host, token)                # in the node process: answers the calls of other nodes
    unreached(node, {1: "HOST:PORT"}, token)      # in a child of it, which waits

    caller -> peer    {"to": 1, "nonce": HEX, "filling": "..."}
    peer -> caller    {"proof": HEX}

Each node calls its peers and is called by them, so a firewall in one direction is noticed too.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from meshctl.network.addresses import joined, listen, split
from meshctl.network.authentication import is_proof, new_nonce, proof_of
from meshctl.network.connection import Connection, ProtocolError, encoded
from meshctl.network.strangers import STRANGER_S, STRANGERS_MAX, RejectedPeers

REACH_S = 10.0
"""Seconds within which a peer must answer."""
CALL_S = 3.0
"""Seconds after which a call without an answer is made anew, because a new connection recovers faster than
one whose packets were lost."""
RETRY_S = 0.2
FILLING = "." * (1 << 16)
"""Makes a message longer than a packet: some paths lose only large packets."""
CALLED = "called node"
"""The role in proofs."""


class Door:
    """Answers the calls of other nodes, one message for each connection."""

    def __init__(self, node: int, host: str, token: str) -> None:
        """Listens at the IP address `host` only. Raises `OSError`."""
        self._node, self._token = node, token
        self._listener = listen(host)
        self._listener.setblocking(False)
        self.address = joined(host, self._listener.getsockname()[1])
        self._callers: dict[Connection, float] = {}
        """Connection -> when it was accepted."""
        self.strangers = RejectedPeers()
        """The connections that were dropped because they were no calls of this run."""

    @property
    def reading(self) -> list[socket.socket | Connection]:
        """The files that become readable when something is to be done."""
        return [self._listener, *self._callers]

    def poll(self, ready: Collection[object]) -> None:
        """Answers what has arrived. `ready` are the files that are readable."""
        if self._listener in ready:
            with suppress(OSError):
                connection = Connection(self._listener.accept()[0])
                connection.message_bytes_max = 2 * len(FILLING)
                self._callers[connection] = time.monotonic()
        for connection in [one for one in self._callers if one in ready]:
            self._answer(connection)
        late = [one for one, began in self._callers.items() if time.monotonic() - began > STRANGER_S]
        for connection in [*late, *list(self._callers)[: len(self._callers) - STRANGERS_MAX]]:
            self._drop(connection)

    def _answer(self, connection: Connection) -> None:
        """Proves to a caller that this is the node that it calls. The proof depends on a nonce of the caller
        alone, and is of no use elsewhere."""
        try:
            for message in connection.receive():
                if message.get("to") != self._node:
                    raise ProtocolError("this is another node")
                words = CALLED, str(self._node), str(message.get("nonce"))
                connection.send({"proof": proof_of(self._token, *words)})
        except ProtocolError:
            self._drop(connection)
        if connection.is_closed:
            self._callers.pop(connection, None)

    def _drop(self, connection: Connection) -> None:
        if self._callers.pop(connection, None) is not None:
            self.strangers.note(connection.peer_host)
            connection.close()

    def close(self) -> None:
        for connection in self._callers:
            connection.close()
        self._listener.close()


def unreached(peers: Mapping[int, str], token: str) -> Iterator[tuple[int, str, str]]:
    """Yields the peers that do not answer within `REACH_S`, each with its address and the problem. Waits, and
    calls all peers at the same time."""
    if not peers:
        return
    with ThreadPoolExecutor(len(peers)) as threads:
        problems = threads.map(lambda peer: _problem_of(peer, peers[peer], token), peers)
        yield from ((peer, peers[peer], why) for peer, why in zip(peers, problems, strict=True) if why)


def _problem_of(peer: int, address: str, token: str) -> str:
    """Returns why a peer is not reached; empty if it has answered."""
    until = time.monotonic() + REACH_S
    while True:
        try:
            return _called(peer, address, token)
        except TimeoutError:
            problem = "it does not answer"
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
        if time.monotonic() + RETRY_S >= until:
            return problem
        time.sleep(RETRY_S)


def _called(peer: int, address: str, token: str) -> str:
    """Calls a peer once. Returns the problem with its answer; empty for a right one. Raises `OSError`."""
    nonce = new_nonce()
    with socket.create_connection(split(address), timeout=CALL_S) as sock, sock.makefile("rb") as lines:
        sock.sendall(encoded({"to": peer, "nonce": nonce, "filling": FILLING}))
        line = lines.readline(4096)
    if not line:
        raise ConnectionResetError(None, "it has closed the connection")
    with suppress(ValueError, AttributeError):
        if is_proof(json.loads(line).get("proof"), proof_of(token, CALLED, str(peer), nonce)):
            return ""
    return "something else answers there, without the token of the run"
