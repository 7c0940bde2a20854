"""The server of the control store (`control_store`): one thread that serves all clients without blocking."""

from __future__ import annotations

import heapq
import select
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from meshctl.network.connection import Connection, Message, ProtocolError, is_proof, new_nonce, proof_of
from meshctl.network.control_store import CLIENT, SERVER
from meshctl.network.strangers import CROWDED_S, Arrivals

SELECT_MAX_S = 3600.0
"""Longest time to wait at once. The system call counts milliseconds with 31 bits."""
REQUEST_BYTES_MAX = 1 << 24


@dataclass(eq=False)
class _Peer:
    connection: Connection
    token: str = field(repr=False)
    began: float = field(default_factory=time.monotonic)
    nonce: str = field(default_factory=new_nonce)
    expected: str = ""
    """The proof that the peer must send; empty before its nonce has arrived."""
    waiting: _Waiting | None = None
    """The request that is not answered yet."""

    def accepts(self, message: Message) -> bool:
        """Processes a message of a peer that has not authenticated. Raises `ProtocolError` if the peer does
        not have the token."""
        if not self.expected:
            nonces = str(message.get("nonce")), self.nonce
            self.expected = proof_of(self.token, CLIENT, *nonces)
            self.connection.send({"nonce": self.nonce, "proof": proof_of(self.token, SERVER, *nonces)})
            return False
        if not is_proof(message.get("proof"), self.expected):
            raise ProtocolError("the token is wrong")
        self.connection.message_bytes_max = REQUEST_BYTES_MAX
        return True


@dataclass(eq=False)
class _Waiting:
    """A request that is answered when its keys exist."""

    peer: _Peer
    keys: Sequence[str]
    missing: set[str]
    has_values: bool
    """True if the answer is the values of the keys."""


class StoreServer:
    """Serves the store in a thread of its own until `close`."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._listener = listener
        self._values: dict[str, str] = {}
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)
        """Key -> the requests that wait for it."""
        self._peers: dict[int, _Peer] = {}
        """File -> the peer that has it."""
        self._limits: list[tuple[float, int, Callable[[], None]]] = []
        """A heap of the time limits: a time, a unique number, and what to do then."""
        self._numbers = count()
        self._epoll = select.epoll()
        self._arrivals = Arrivals(listener, self._epoll, partial(_Peer, token=token))
        self._closing, self._closed = socket.socketpair()
        self._epoll.register(self._closed.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="control store")
        self._thread.start()

    def close(self) -> None:
        """Ends the connections and the thread."""
        if self._thread.is_alive():
            self._closing.close()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            for file, events in self._epoll.poll(self._seconds()):
                if file == self._closed.fileno():
                    self._release()
                    return
                if file == self._listener.fileno():
                    self._arrivals.accept()
                elif file in self._arrivals:
                    for peer in self._arrivals.receive(file):
                        self._peers[file] = peer
                        self._answer(peer, True)
                elif file in self._peers:
                    self._serve_peer(self._peers[file], events)
            self._end_limits(time.monotonic())
            self._arrivals.expire(time.monotonic())

    def _release(self) -> None:
        for peer in self._peers.values():
            peer.connection.close()
        self._arrivals.close()
        self._closed.close()
        self._epoll.close()

    def _seconds(self) -> float:
        """Returns the seconds until something may be due."""
        longest_s = CROWDED_S / 4 if len(self._arrivals) else SELECT_MAX_S
        limit_s = self._limits[0][0] - time.monotonic() if self._limits else longest_s
        return min(max(limit_s, 0.0), longest_s)

    def _limit(self, seconds: float, end: Callable[[], None]) -> None:
        heapq.heappush(self._limits, (time.monotonic() + seconds, next(self._numbers), end))

    def _end_limits(self, now: float) -> None:
        while self._limits and self._limits[0][0] <= now:
            _, _, end = heapq.heappop(self._limits)
            end()

    # Peers

    def _serve_peer(self, peer: _Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            peer.connection.flush()
            self._watch(peer)
        file = peer.connection.fileno()
        try:
            for message in peer.connection.receive():
                self._on_request(peer, message)
        except (ProtocolError, LookupError, TypeError, ValueError):
            peer.connection.close()
        if peer.connection.is_closed:
            del self._peers[file]
            self._end_wait(peer)

    def _end_wait(self, peer: _Peer) -> None:
        """Forgets the request that a peer waits for."""
        if waiting := peer.waiting:
            peer.waiting = None
            for key in waiting.missing:
                self._waiting[key].remove(waiting)
                if not self._waiting[key]:
                    del self._waiting[key]

    def _answer(self, peer: _Peer, value: object) -> None:
        self._send(peer, {"value": value})

    def _send(self, peer: _Peer, message: Message) -> None:
        peer.connection.send(message)
        if peer.connection.has_unsent:
            self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        """Waits for what the peer sends and, while bytes for it are buffered, until it can receive them."""
        writing = select.EPOLLOUT if peer.connection.has_unsent else 0
        if not peer.connection.is_closed:
            self._epoll.modify(peer.connection.fileno(), select.EPOLLIN | writing)

    # Requests

    def _on_request(self, peer: _Peer, request: Message) -> None:
        if peer.waiting:
            raise ProtocolError("a request came before the answer to the one before it")
        op = request["op"]
        if op in ("wait", "multi_get"):
            self._on_wait(peer, request, has_values=op == "multi_get")
        else:
            self._answer(peer, REQUESTS[op](self, request))

    def _on_wait(self, peer: _Peer, request: Message, has_values: bool) -> None:
        keys = [str(key) for key in request["keys"]]
        waiting = _Waiting(peer, keys, {key for key in keys if key not in self._values}, has_values)
        if not waiting.missing:
            self._answer_wait(waiting)
            return
        peer.waiting = waiting
        for key in waiting.missing:
            self._waiting[key].append(waiting)
        self._limit(float(request["timeout_s"]), lambda: self._give_up(waiting))

    def _give_up(self, waiting: _Waiting) -> None:
        """Answers a request whose time limit has passed, unless it is answered already."""
        if waiting.peer.waiting is waiting:
            self._end_wait(waiting.peer)
            self._answer(waiting.peer, None)

    def _answer_wait(self, waiting: _Waiting) -> None:
        values = [self._values[key] for key in waiting.keys] if waiting.has_values else True
        self._answer(waiting.peer, values)

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.missing.discard(key)
            if not waiting.missing:
                waiting.peer.waiting = None
                self._answer_wait(waiting)

    def _on_set(self, request: Message) -> bool:
        self._set(str(request["key"]), str(request["value"]))
        return True

    def _on_add(self, request: Message) -> int:
        key = str(request["key"])
        found = int(self._values.get(key, "0")) + int(request["amount"])
        self._set(key, str(found))
        return found

    def _on_compare_set(self, request: Message) -> str:
        key, desired = str(request["key"]), str(request["desired"])
        if self._values.get(key, "") == request["expected"]:
            self._set(key, desired)
        return self._values.get(key, "")

    def _on_check(self, request: Message) -> bool:
        return all(key in self._values for key in request["keys"])

    def _on_delete_key(self, request: Message) -> bool:
        return self._values.pop(str(request["key"]), None) is not None


REQUESTS: dict[str, Callable[[StoreServer, Message], Any]] = {
    "set": StoreServer._on_set,
    "add": StoreServer._on_add,
    "compare_set": StoreServer._on_compare_set,
    "check": StoreServer._on_check,
    "delete_key": StoreServer._on_delete_key,
}
"""Name of a request that is answered at once -> the method that returns its answer."""
