"""The server of the control store (`control_store`): one thread that serves all clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import Any

from meshctl.engines import connection
from meshctl.network.connection import (
    HANDSHAKE_BYTES_MAX,
    RECEIVE_BYTES,
    Message,
    ProtocolError,
    encoded,
    is_proof,
    new_nonce,
    parsed,
    proof_of,
)
from meshctl.network.control_store import CLIENT, SERVER

REQUEST_BYTES_MAX = 1 << 24
RETRY_S = 0.1
"""Seconds until another client is accepted after one that could not be, because no file was left."""


class _Client:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop, self.socket, self._received = asyncio.get_running_loop(), sock, b""

    async def read(self) -> None:
        """Waits until bytes arrive. Raises `OSError` if the client has ended."""
        data = await self._loop.sock_recv(self.socket, RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError
        self._received += data

    async def receive(self, bytes_max: int) -> Message:
        """Returns the next message. Raises `OSError`, and `ProtocolError` for an invalid one."""
        while b"\n" not in self._received:
            if len(self._received) > bytes_max:
                raise ProtocolError("the message is too long")
            await self.read()
        line, _, self._received = self._received.partition(b"\n")
        return parsed(line)

    async def send(self, message: Message) -> None:
        await self._loop.sock_sendall(self.socket, encoded(message))

    async def authenticate(self, token: str) -> None:
        """Raises `ProtocolError` for a client without the token."""
        nonces = str((await self.receive(HANDSHAKE_BYTES_MAX)).get("nonce")), new_nonce()
        await self.send({"nonce": nonces[1], "proof": proof_of(token, SERVER, *nonces)})
        answer = await self.receive(HANDSHAKE_BYTES_MAX)
        if not is_proof(answer.get("proof"), proof_of(token, CLIENT, *nonces)):
            raise ProtocolError("the token is wrong")
        await self.send({"value": True})


class StoreServer:
    """Serves the store in a thread of its own until `close`."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        listener.setblocking(False)
        self._listener, self._token = listener, token
        self._values: dict[str, str] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        """Key -> the event that it is set, for the keys that clients wait for."""
        self._places = asyncio.Semaphore(connection.STRANGERS_MAX)
        """The clients that may authenticate at the same time. Further ones wait in the listener's queue."""
        self._loop, self._is_over = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="control store")
        self._thread.start()

    def close(self) -> None:
        """Ends the connections and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join()

    def _run(self) -> None:
        with self._listener, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accepts clients until the end, which cancels all tasks."""
        accepting = self._loop.create_task(self._accept())
        await self._is_over.wait()
        accepting.cancel()

    async def _accept(self) -> None:
        clients = set[asyncio.Task[None]]()
        while True:
            await self._places.acquire()
            try:
                sock, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                self._places.release()
                await asyncio.sleep(RETRY_S)
                continue
            clients.add(task := self._loop.create_task(self._serve_client(_Client(sock))))
            task.add_done_callback(clients.discard)

    async def _serve_client(self, client: _Client) -> None:
        """Serves a client that authenticates in time, until it ends."""
        try:
            try:
                async with asyncio.timeout(connection.STRANGER_S):
                    await client.authenticate(self._token)
            finally:
                self._places.release()
            while True:
                request = await client.receive(REQUEST_BYTES_MAX)
                await client.send({"value": await self._value(client, request)})
        except (OSError, ProtocolError, LookupError, TypeError, ValueError):
            pass  # it has ended, or is no client
        finally:
            client.socket.close()

    async def _value(self, client: _Client, request: Message) -> Any:
        """Returns the answer to a request; None after the time limit of one that waits."""
        if request["op"] in ("wait", "multi_get"):
            keys = [str(key) for key in request["keys"]]
            if not await self._exist(client, keys, float(request["timeout_s"])):
                return None
            return [self._values[key] for key in keys] if request["op"] == "multi_get" else True
        if request["op"] == "check":
            return all(key in self._values for key in request["keys"])
        key = str(request["key"])
        found = self._values.get(key, "")
        match request["op"]:
            case "set":
                self._set(key, str(request["value"]))
                return True
            case "add":
                return int(self._set(key, str(int(found or 0) + int(request["amount"]))))
            case "compare_set":
                return self._set(key, str(request["desired"])) if found == request["expected"] else found
            case "delete_key":
                return self._values.pop(key, None) is not None
        raise ProtocolError("the request is unknown")

    def _set(self, key: str, value: str) -> str:
        self._values[key] = value
        if event := self._awaited.pop(key, None):
            event.set()
        return value

    async def _exist(self, client: _Client, keys: Sequence[str], seconds: float) -> bool:
        """Waits until all keys exist. Returns whether they do within a time. Raises `OSError` if the client
        ends meanwhile, and `ProtocolError` if it sends another request."""
        if all(key in self._values for key in keys):
            return True
        found, ended = self._loop.create_task(self._found(keys)), self._loop.create_task(client.read())
        try:
            done, _ = await asyncio.wait((found, ended), timeout=seconds, return_when="FIRST_COMPLETED")
        finally:
            found.cancel()
            ended.cancel()
        if ended in done:
            ended.result()
            raise ProtocolError("a request came before the answer to the one before it")
        return found in done

    async def _found(self, keys: Sequence[str]) -> None:
        for key in keys:
            while key not in self._values:
                await self._awaited.setdefault(key, asyncio.Event()).wait()
