"""The store by which the processes of a run agree: keys and values, for clients that have the run's token.

    server = StoreServer(listener, token)                      in the supervisor, a thread
    store = StoreClient("HOST:PORT", token, "run/0/")          in a worker, an agent, and the supervisor
    store.set("begun/3", "17")
    store.wait(["begun/4"], timeout)

Everything that can steer or end a run goes through it: the agreement on the last step, the addresses of
workers, the token of the data plane. torch's TCPStore has no authentication: any local user can read and
write it. Only torch's own process groups use that one.

    client -> server    {"nonce": HEX}
    server -> client    {"nonce": HEX, "proof": HEX}
    client -> server    {"proof": HEX}
    client -> server    {"op": "wait", "keys": [...], "timeout_s": 60.0}       one request at a time
    server -> client    {"value": true}                                        false after the time limit

A client has the methods and semantics of torch's `Store` that are used here.
"""

from __future__ import annotations

import copy
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from meshctl.network.addresses import split
from meshctl.network.connection import is_proof, new_nonce, proof_of

CLIENT, SERVER = "store client", "store server"
"""The roles in proofs."""
CONNECT_S = 60.0
"""Time limit to connect and to authenticate, and for an answer beyond the time limit of its request."""
FOREVER_S = 1e6
"""The longest time limit of a socket, in seconds."""
GET = timedelta(seconds=60)
"""Time limit of `get` for its keys."""


class Store(Protocol):
    """The part of torch's store that is used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def delete_key(self, key: str, /) -> bool: ...


class StoreLost(ConnectionResetError):
    """The store has ended, because the supervisor has, or does not have the token of the run."""


class StoreTimeout(TimeoutError):
    """The keys were not set within the time limit."""


class StoreClient:
    """A connection to the store. Threads may share it, but a request waits for the one before it."""

    def __init__(
        self,
        address: str,
        token: str,
        prefix: str = "",
        limit_s: float = CONNECT_S,
    ) -> None:
        """Connects to the server at HOST:PORT and authenticates, within `limit_s` seconds. `prefix` is put
        before every key. Raises `StoreLost`."""
        self.address = address
        host, port = split(address)
        self._prefix, self._limit_s = prefix, limit_s
        self._lock = threading.Lock()
        try:
            self._socket = socket.create_connection((host, port), timeout=limit_s)
        except OSError as error:
            raise StoreLost(f"the launcher's store at {address} cannot be reached: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        try:
            self._authenticate(token)
        except StoreLost:
            self.close()
            raise

    def under(self, prefix: str) -> StoreClient:
        """Returns the same connection with a further prefix before every key."""
        view = copy.copy(self)
        view._prefix = self._prefix + prefix
        return view

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def set(self, key: str, value: str) -> None:
        self._ask("set", key=self._prefix + key, value=value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Returns the values of keys, in their order; waits for those that are missing. Raises
        `StoreTimeout`."""
        values = self._wait("multi_get", keys, GET)
        return [value.encode() for value in values]

    def add(self, key: str, amount: int) -> int:
        """Adds to the number at a key, which is 0 at first. Returns the sum."""
        return int(self._ask("add", key=self._prefix + key, amount=amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets a key to `desired` if its value is `expected`; a missing key has the value "". Returns the
        value after that."""
        value: str = self._ask("compare_set", key=self._prefix + key, expected=expected, desired=desired)
        return value.encode()

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys exist."""
        return bool(self._ask("check", keys=self._prefixed(keys)))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Waits until all keys exist. Raises `StoreTimeout`."""
        self._wait("wait", keys, timeout)

    def delete_key(self, key: str) -> bool:
        """Returns whether the key existed."""
        return bool(self._ask("delete_key", key=self._prefix + key))

    def _prefixed(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in keys]

    def _wait(self, op: str, keys: Sequence[str], timeout: timedelta) -> Any:
        seconds = timeout.total_seconds()
        value = self._ask(op, seconds, keys=self._prefixed(keys), timeout_s=seconds)
        if value is None:
            raise StoreTimeout(f"the keys {', '.join(keys)} were not set within {seconds:.0f} s")
        return value

    def _authenticate(self, token: str) -> None:
        nonce = new_nonce()
        answer = self._exchange({"nonce": nonce}, 0.0)
        nonces = nonce, str(answer.get("nonce"))
        if not is_proof(answer.get("proof"), proof_of(token, SERVER, *nonces)):
            with suppress(OSError):  # otherwise the server would take this for the end of a worker
                self._socket.sendall(b'{"proof": ""}\n')
            raise StoreLost("the launcher's store does not have the token of this run")
        self._exchange({"proof": proof_of(token, CLIENT, *nonces)}, 0.0)

    def _ask(self, op: str, seconds: float = 0.0, **arguments: Any) -> Any:
        with self._lock:
            return self._exchange({"op": op, **arguments}, seconds)["value"]

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Sends a request that the server answers within `seconds`. Raises `StoreLost`."""
        try:
            self._socket.settimeout(min(seconds, FOREVER_S) + self._limit_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline()
            answer: dict[str, Any] = json.loads(line) if line else {}
        except (OSError, ValueError) as error:
            raise StoreLost(f"the launcher's store is lost: {error}") from error
        if not answer:
            raise StoreLost("the launcher's store has ended the connection")
        return answer
