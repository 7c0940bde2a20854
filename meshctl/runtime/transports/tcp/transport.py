"""Frames between processes of different nodes, over TCP.

Each job rank listens on the one address by which it reaches the launcher.

    program         its thread makes one system call per frame, which suffices for a small frame, and sends
                    a large one from the memory of its tensors while the network takes it fast (`Backlog`)
    tcp-send        a thread that sends the rest, so that nobody waits for a receiver's program
    tcp-receive     a thread that reads everything into warm memory, whatever the program does

A received frame stays in memory until the program takes it; the slots of the tags bound how much that can be.
A node that vanished sends nothing: it is lost when its kernel has acknowledged nothing for `SILENCE_S`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from meshctl.network.addresses import listen
from meshctl.runtime.devices.backend import DeviceMemory
from meshctl.runtime.transports.buffers.caching_allocator import CachingAllocator
from meshctl.runtime.transports.buffers.frames import Frame, tensor_of
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ProtocolError
from meshctl.runtime.transports.peers import GENERATION, HEAD, Action, Kind, Message, PeerTransport
from meshctl.runtime.transports.progress import ProgressThread
from meshctl.runtime.transports.tcp.connection import (
    SILENCE_S,
    Backlog,
    Connection,
    connected,
    is_silent,
    keep_in_cache,
    memoryview_of,
    prepare,
    silence,
)
from meshctl.runtime.transports.transport import Lease

MAX_STRANGERS = 256
"""The most connections whose peer is unknown because its HELLO has not arrived. Of more, the oldest is
closed."""
_SCRATCH_BYTES = 1 << 16
_GATHERED_MIN = 1 << 20
"""The size in bytes from which frames are sent from the memory of their tensors."""
_MAX_FRAME_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_SIZE = struct.Struct("<q")


class TcpTransport(PeerTransport[Connection]):
    def __init__(
        self,
        data_plane: DataPlane,
        token: str,
        host: str = "127.0.0.1",
        memory: DeviceMemory | None = None,
        devices: Container[int] = (),
    ) -> None:
        """Listens on the IP address `host` only. `token` is the run's; a connection without it
        is refused. Tensors in a device's `memory` travel to the job ranks in `devices` by transfers."""
        super().__init__(data_plane, token)
        self._memory, self._devices = memory, devices
        self._listener = listen(host, backlog=4096)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host} {port}"
        self._strangers: dict[Connection, None] = {}
        self._ended: list[Connection] = []
        """Connections that have ended. Their sockets stay open: a thread may be about to use one."""
        self._allocator = CachingAllocator()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.sender = ProgressThread("tcp-send", select.EPOLLOUT, self._on_thread_error)
        timer = self._check_silence, SILENCE_S / 4
        self.receiver = ProgressThread("tcp-receive", select.EPOLLIN, self._on_thread_error, *timer)

    def connect(self, addresses: Mapping[int, str]) -> None:
        is_first = not self._addresses
        self._addresses |= {peer: one for peer, one in addresses.items() if peer != self._job_rank}
        self._data_plane.add(self._addresses, self)
        if is_first:
            self.receiver.add(self._listener.fileno(), self._accept)
            self.receiver.start()
            self.sender.start()

    # Memory

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        if self._memory is None or not tensor.nbytes or tensor.is_meta or not self._memory.holds(tensor):
            return False
        return all(receiver in self._devices for receiver in to)

    def lease(self, to: Sequence[int], tag: int, nbytes: int, out_of_band: Sequence[Tensor] = ()) -> Lease:
        if out_of_band and self._memory:
            # a receiver serves no other sender meanwhile, so it must not wait for this device's queued work
            self._memory.finish()
        try:
            return Lease(tuple(to), tag, self._allocator.take((tuple(to), tag), nbytes), out_of_band)
        except MemoryError as error:
            raise self._data_plane.context.out_of_memory(nbytes, tag, error) from None

    def _memory_for(self, connection: Connection, kind: int, tag: int, nbytes: int) -> Tensor:
        """Returns the memory into which the body of a message is received. Raises `ProtocolError` for a
        message that the peer may not send."""
        if kind not in self._actions_of(connection):
            raise ProtocolError(f"kind {kind} with {nbytes} bytes")
        if kind == Kind.FRAME:
            if not 0 <= nbytes <= _MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {nbytes} bytes in tag {tag}")
            return self._allocator.take((connection.job_rank, tag), nbytes)
        sizes = {Kind.HELLO: GENERATION.size + len(self._token), Kind.OUT_OF_BAND: _SIZE.size}
        if nbytes != sizes.get(Kind(kind), 0):
            raise ProtocolError(f"kind {kind} with {nbytes} bytes")
        return torch.empty(nbytes, dtype=torch.uint8)

    # Sending

    def post(self, to: int, tag: int, lease: Lease, *, write: bool = False) -> None:
        connection = self._connection_to(to)
        for tensor in lease.out_of_band:
            self._send(connection, Kind.OUT_OF_BAND, tag, _SIZE.pack(tensor.nbytes))
        self._push(connection, Kind.FRAME, tag, lease.frame)
        if lease.out_of_band and self._data_plane.transfers:
            self._data_plane.transfers.send(to, lease.out_of_band)

    def needs_no_lease(self, to: Sequence[int], frame: Frame) -> bool:
        return len(to) == 1 and frame.nbytes >= _GATHERED_MIN and frame.is_plain

    def post_frame(self, to: Sequence[int], tag: int, frame: Frame) -> None:
        connection = self._connection_to(to[0])
        memory_for = partial(self._allocator.take, (to[0], tag))
        head = memoryview(HEAD.pack(Kind.FRAME, self._generation, tag, frame.nbytes))
        is_taken = connection.backlog.push([head, *filter(len, frame.pieces())], memory_for)
        if is_taken and not connection.backlog.drain_while_fast(memory_for):
            self._have_drained(connection.backlog)

    def _send(self, connection: Connection, kind: Kind, tag: int = 0, body: bytes = b"") -> None:
        self._push(connection, kind, tag, tensor_of(body))

    def _push(self, connection: Connection, kind: Kind, tag: int, body: Tensor) -> None:
        head = memoryview(HEAD.pack(kind, self._generation, tag, len(body)))
        if connection.backlog.push([head, memoryview_of(body)] if len(body) else [head]):
            self._have_drained(connection.backlog)

    def _have_drained(self, backlog: Backlog) -> None:
        """Has the sending thread send the rest of a backlog."""
        self.sender.add(backlog.sock.fileno(), partial(self._drain, backlog))

    def _drain(self, backlog: Backlog) -> None:
        """Sends a part of a backlog. Runs on the sending thread; no other one sends on this socket until the
        backlog is empty."""
        self.sender.remove(backlog.sock.fileno())
        if not backlog.drain():
            self._have_drained(backlog)
        elif self._is_leaving:
            self._data_plane.notify()

    def _dial(self, address: str) -> socket.socket:
        host, port = address.split()
        sock = connected(host, int(port))
        keep_in_cache(sock)
        return sock

    def _unreachable(self, address: str, error: OSError) -> str:
        return f"cannot be reached at {address.replace(' ', ':')}: {error}"

    def _new(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> Connection:
        return Connection(sock, self._memory_for, job_rank, generation)

    def _watch(self, connection: Connection) -> None:
        self.receiver.add(connection.sock.fileno(), partial(self._read, connection))

    # Receiving, on its thread

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            prepare(sock)
            connection = self._new(sock)
            self._strangers[connection] = None
            self._watch(connection)
            if len(self._strangers) > MAX_STRANGERS:
                self._shut(next(iter(self._strangers)))

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.read(self._scratch):
                self.dispatch(connection, message)
        except TimeoutError:
            self._on_end(connection, silence())
        except (EOFError, OSError):
            self._on_end(connection)
        except (ProtocolError, MemoryError) as error:
            self._refuse(connection, error)

    def _on_hello(self, connection: Connection, message: Message) -> None:
        super()._on_hello(connection, message)
        del self._strangers[connection]

    def _on_frame(self, connection: Connection, message: Message) -> None:
        sizes, connection.out_of_band_sizes = connection.out_of_band_sizes, []
        clear_to_send = partial(self._send, connection, Kind.CLEAR_TO_SEND)
        peer, generation, frame = connection.job_rank, connection.generation, tensor_of(message.body)
        self._data_plane.on_message(peer, message.tag, frame, sizes, clear_to_send, generation)

    def _on_out_of_band(self, connection: Connection, message: Message) -> None:
        [nbytes] = _SIZE.unpack(message.data)
        if nbytes <= 0 or self._data_plane.transfers is None:
            raise ProtocolError(f"a tensor of {nbytes} bytes")
        connection.out_of_band_sizes.append(nbytes)

    GREETING: Mapping[int, Action] = {Kind.HELLO: _on_hello}
    ACTIONS: Mapping[int, Action] = {
        **PeerTransport.ACTIONS,
        Kind.FRAME: _on_frame,
        Kind.OUT_OF_BAND: _on_out_of_band,
    }

    # Ends

    def _shut(self, connection: Connection) -> None:
        """Stops reading and ends the connection. The file descriptor of a known peer stays open until
        `release`, because the sending thread may be about to use it."""
        if connection.job_rank < 0:
            self.receiver.remove(connection.sock.fileno())
            self._strangers.pop(connection, None)
            connection.sock.close()
        else:
            self.receiver.end(connection.sock)
            self._ended.append(connection)

    def _check_silence(self) -> None:
        """Ends connections to nodes that vanished while something was in flight to them. The kernel itself
        probes idle connections."""
        for connection in self._connections:
            if not connection.has_left and is_silent(connection.sock):
                self._on_end(connection, silence())

    @property
    def is_sending(self) -> bool:
        """True if some socket has not taken all messages yet."""
        return any(each.backlog.is_sending for each in self._connections)

    def _finish(self) -> None:
        self._data_plane.wait_until(lambda: not self.is_sending)

    def _close_all(self) -> None:
        for connection in (*self._connections, *self._strangers, *self._ended):
            connection.sock.close()
        self._listener.close()

    def forget(self) -> None:
        self._close_all()

    def release(self) -> None:
        """Ends threads and connections without waiting for peers. Calling it again does nothing."""
        if self._listener.fileno() < 0:
            return
        self.receiver.close()
        self.sender.close()
        self._close_all()
