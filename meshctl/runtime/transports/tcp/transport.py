"""Frames between processes of different nodes, over TCP.

The sender of frames opens the connection to their receiver, so only job ranks that share samples have one.
Frames travel on it in one direction, credits in the other. Each job rank listens on the one address by which
it reaches the launcher, and refuses connections without the run's token or of another generation.

    program         its thread makes one system call per frame, which suffices for a small frame, and sends
                    a large one from the memory of its tensors while the network takes it fast (`Backlog`)
    tcp-send        a thread that sends the rest, so that nobody waits for a receiver's program
    tcp-receive     a thread that reads everything into warm memory, whatever the program does

A received frame stays in memory until the program takes it; the slots of the tags bound how much that can be.
A peer is lost when its connection ends without a goodbye. A node that vanished sends nothing: it is lost when
its kernel has acknowledged nothing for `SILENCE_S`.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from meshctl.network.addresses import listen
from meshctl.runtime.devices.backend import DeviceMemory
from meshctl.runtime.transports.buffers.caching_allocator import CachingAllocator
from meshctl.runtime.transports.buffers.frames import MAX_OUT_OF_BAND, Frame, bytes_of
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.tcp import sockets
from meshctl.runtime.transports.tcp.connection import Backlog, Connection, memoryview_of
from meshctl.runtime.transports.tcp.messages import HEAD, Address, Head, Kind, Message
from meshctl.runtime.transports.tcp.progress import ProgressThread
from meshctl.runtime.transports.transport import Lease, Transport

MAX_STRANGERS = 256
"""The most connections whose peer is unknown because its HELLO has not arrived. Of more, the oldest is
closed."""
_SCRATCH_BYTES = 1 << 16
_GATHERED_MIN = 1 << 20
"""The size in bytes from which frames are sent from the memory of their tensors."""
_MAX_FRAME_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_SIZE = struct.Struct("<q")
_GENERATION = struct.Struct("<I")


class TcpTransport(Transport):
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
        self._data_plane, self._token = data_plane, token.encode()
        self._job_rank = data_plane.job_rank
        self._generation = data_plane.generation_of(self._job_rank)
        self._memory, self._devices = memory, devices
        self._listener = listen(host, backlog=4096)
        self._listener.setblocking(False)
        self.address = Address(*self._listener.getsockname()[:2])
        self._addresses: dict[int, Address] = {}
        self._to: dict[int, Connection] = {}
        self._from: dict[int, Connection] = {}
        self._strangers: dict[Connection, None] = {}
        self._replaced: list[Connection] = []
        """Connections of older generations. Their sockets stay open: a thread may be about to use one."""
        self._allocator = CachingAllocator()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.sender = ProgressThread("tcp-send", select.EPOLLOUT, self._on_thread_error)
        timer = self._check_silence, sockets.SILENCE_S / 4
        self.receiver = ProgressThread("tcp-receive", select.EPOLLIN, self._on_thread_error, *timer)
        self._is_closing = False

    def connect(self, addresses: Mapping[int, Address]) -> None:
        """Registers where peers listen. A connection is opened when there is something to send."""
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

    def _memory_for(self, connection: Connection, head: Head) -> Tensor:
        """Returns the memory into which the bytes of a message are received. Raises `ProtocolError` for a
        message that the peer may not send."""
        kind, nbytes = head.kind, head.nbytes
        if kind not in self._actions_of(connection):
            raise ProtocolError(f"kind {kind} with {nbytes} bytes")
        if kind == Kind.FRAME:
            if not 0 <= nbytes <= _MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {nbytes} bytes in tag {head.tag}")
            self._data_plane.check_slot(connection.job_rank, head.tag)
            return self._allocator.take((connection.job_rank, head.tag), nbytes)
        if kind == Kind.OUT_OF_BAND and len(connection.out_of_band_sizes) >= MAX_OUT_OF_BAND:
            raise ProtocolError(f"more than {MAX_OUT_OF_BAND} tensors beside a frame")
        if nbytes != self._BODY_BYTES.get(Kind(kind), 0) + len(self._token) * (kind in self._GREETING):
            raise ProtocolError(f"kind {kind} with {nbytes} bytes")
        return torch.empty(nbytes, dtype=torch.uint8)

    _BODY_BYTES: Mapping[Kind, int] = {
        Kind.HELLO: _GENERATION.size,
        Kind.OUT_OF_BAND: _SIZE.size,
    }
    """Kind -> the size in bytes of its body, of greetings without the token."""

    # Sending

    def post(self, to: int, tag: int, lease: Lease, *, write: bool = False) -> None:
        connection = self._to.get(to) or self._connection_to(to)
        for tensor in lease.out_of_band:
            self._send(connection, Kind.OUT_OF_BAND, tag, _bytes(_SIZE.pack(tensor.nbytes)))
        self._send(connection, Kind.FRAME, tag, lease.frame)
        if lease.out_of_band and self._data_plane.transfers:
            self._data_plane.transfers.send(to, lease.out_of_band)

    def gathers(self, to: Sequence[int], frame: Frame) -> bool:
        return len(to) == 1 and frame.nbytes >= _GATHERED_MIN and frame.is_plain

    def post_gathered(self, to: int, tag: int, frame: Frame) -> None:
        connection = self._to.get(to) or self._connection_to(to)
        memory_for = partial(self._allocator.take, (to, tag))
        head = memoryview(HEAD.pack(Kind.FRAME, self._generation, tag, frame.nbytes))
        is_taken = connection.backlog.push([head, *filter(len, frame.pieces())], memory_for)
        if is_taken and not connection.backlog.drain_while_fast(memory_for):
            self._have_drained(connection.backlog)

    def credit(self, to: int, tag: int) -> None:
        if connection := self._from.get(to):  # none where its peer has been replaced meanwhile
            self._send(connection, Kind.CREDIT, tag)

    def _send(self, connection: Connection, kind: Kind, tag: int = 0, body: Tensor | None = None) -> None:
        nbytes, memory = (0, None) if body is None else (len(body), memoryview_of(body))
        if connection.push(Head(kind, self._generation, tag, nbytes), memory):
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
        elif self._is_closing:
            self._data_plane.notify()

    def _connection_to(self, peer: int) -> Connection:
        generation = self._data_plane.generation_of(peer)
        sock = self._dialled(peer)
        if sock is None:
            connection = self._to[peer] = Connection(socket.socket(), self._memory_for, peer, generation)
            connection.drop_all()
            return connection
        sockets.keep_in_cache(sock)
        connection = self._to[peer] = self._open(sock, peer, generation)
        self._send(connection, Kind.HELLO, self._job_rank, _bytes(_GENERATION.pack(generation) + self._token))
        return connection

    def _dialled(self, peer: int) -> socket.socket | None:
        """Returns a connected socket, or None if the peer has left the run. Raises `PeerLost`."""
        address = self._addresses[peer]
        try:
            return sockets.connected(address.host, address.port)
        except OSError as error:
            if self._data_plane.context.has_left(peer):
                return None
            how = f"cannot be reached at {address.host}:{address.port}: {error}"
            raise self._data_plane.peer_lost(peer, how) from None

    def _open(self, sock: socket.socket, peer: int = -1, generation: int = 0) -> Connection:
        connection = Connection(sock, self._memory_for, peer, generation)
        if peer < 0:
            self._strangers[connection] = None
        self.receiver.add(sock.fileno(), partial(self._read, connection))
        return connection

    # Receiving, on its thread

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            sockets.prepare(sock)
            self._open(sock)
            if len(self._strangers) > MAX_STRANGERS:
                self._shut(next(iter(self._strangers)))

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.read(self._scratch):
                self._dispatch(connection, message)
        except TimeoutError:
            self._on_end(connection, sockets.silence())
        except (EOFError, OSError):
            self._on_end(connection, "is gone")
        except (ProtocolError, MemoryError) as error:
            self._shut(connection)
            if connection.job_rank >= 0:
                self._lose(connection, f"sent bytes that are not a message: {error}")

    def _actions_of(self, connection: Connection) -> Mapping[int, _Action]:
        if connection.job_rank < 0:
            return self._GREETING
        return self._ANSWERS if connection.is_outgoing else self._ACTIONS

    def _dispatch(self, connection: Connection, message: Message) -> None:
        """Acts on a message; drops those of processes that have been replaced. Raises `ProtocolError`."""
        if connection.job_rank >= 0 and message.head.generation != connection.generation:
            return
        self._actions_of(connection)[message.head.kind](self, connection, message)

    def _on_hello(self, connection: Connection, message: Message) -> None:
        [wanted] = _GENERATION.unpack_from(bytes_of(message.memory))
        peer, body, plane = message.head.tag, bytes_of(message.memory), self._data_plane
        if peer not in self._addresses or not hmac.compare_digest(body[_GENERATION.size :], self._token):
            raise ProtocolError("a wrong greeting")
        if (message.head.generation, wanted) != (plane.generation_of(peer), self._generation):
            raise ProtocolError("a greeting of another generation")
        if peer in self._from:
            raise ProtocolError("a second greeting")
        del self._strangers[connection]
        connection.job_rank, connection.generation = peer, message.head.generation
        self._from[peer] = connection
        if self._is_closing:  # the peer began a step that the end of the run dropped
            self._send(connection, Kind.GOODBYE)

    def _on_frame(self, connection: Connection, message: Message) -> None:
        sizes, connection.out_of_band_sizes = connection.out_of_band_sizes, []
        clear_to_send = partial(self._send, connection, Kind.CLEAR_TO_SEND)
        self._data_plane.on_message(
            connection.job_rank, message.head.tag, message.memory, sizes, clear_to_send, connection.generation
        )

    def _on_out_of_band(self, connection: Connection, message: Message) -> None:
        [nbytes] = _SIZE.unpack(bytes_of(message.memory))
        if nbytes <= 0 or self._data_plane.transfers is None:
            raise ProtocolError(f"a tensor of {nbytes} bytes")
        connection.out_of_band_sizes.append(nbytes)

    def _on_credit(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_credit(connection.job_rank, message.head.tag, connection.generation)

    def _on_clear_to_send(self, connection: Connection, message: Message) -> None:
        if self._data_plane.transfers:
            self._data_plane.transfers.clear_to_send(connection.job_rank)

    def _on_goodbye(self, connection: Connection, message: Message) -> None:
        connection.has_left = True
        self._data_plane.notify()

    def _on_lost(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_peer_lost(message.head.tag, connection.job_rank)

    _GREETING: Mapping[int, _Action] = {Kind.HELLO: _on_hello}
    """Kind -> action, for an accepted connection whose peer is not known yet."""
    _ACTIONS: Mapping[int, _Action] = {
        Kind.FRAME: _on_frame,
        Kind.OUT_OF_BAND: _on_out_of_band,
        Kind.GOODBYE: _on_goodbye,
        Kind.LOST: _on_lost,
    }
    """Kind -> action, for messages from the process that opened the connection."""
    _ANSWERS: Mapping[int, _Action] = {
        Kind.CREDIT: _on_credit,
        Kind.CLEAR_TO_SEND: _on_clear_to_send,
        Kind.GOODBYE: _on_goodbye,
        Kind.LOST: _on_lost,
    }
    """Kind -> action, for messages from the process that accepted the connection."""

    # Ends

    def _lose(self, connection: Connection, how: str) -> None:
        """Records the loss of a connection's peer, unless its processes have been replaced."""
        if connection not in self._replaced:
            self._data_plane.fail(self._data_plane.peer_lost(connection.job_rank, how))

    def _on_end(self, connection: Connection, how: str) -> None:
        self._shut(connection)
        if connection.job_rank < 0 or connection.has_left:
            return
        connection.has_left = self._data_plane.context.has_left(connection.job_rank)
        if connection.has_left:
            self._data_plane.notify()
        else:
            self._lose(connection, how)

    def _shut(self, connection: Connection) -> None:
        """Stops reading and ends the connection. The file descriptor of a known peer stays open until
        `release`, because the sending thread may be about to use it."""
        if connection.job_rank < 0:
            self.receiver.remove(connection.sock.fileno())
            self._strangers.pop(connection, None)
            connection.sock.close()
        else:
            self.receiver.end(connection.sock)

    def reopen(self, job_ranks: Sequence[int]) -> None:
        for peer in job_ranks:
            for connections in (self._to, self._from):
                if connection := connections.pop(peer, None):
                    self._replaced.append(connection)
                    self._shut(connection)
            self._addresses.pop(peer, None)

    def _check_silence(self) -> None:
        """Ends connections to nodes that vanished while something was in flight to them. The kernel itself
        probes idle connections."""
        for connection in self._connections:
            if not connection.has_left and sockets.is_silent(connection.sock):
                self._on_end(connection, sockets.silence())

    @property
    def _connections(self) -> list[Connection]:
        return [*self._to.values(), *self._from.values()]

    @property
    def is_sending(self) -> bool:
        """True if some socket has not taken all messages yet."""
        return any(each.backlog.is_sending for each in self._connections)

    def _close_all(self) -> None:
        for connection in (*self._connections, *self._strangers, *self._replaced):
            connection.sock.close()
        self._listener.close()

    def _on_thread_error(self, error: Exception) -> None:
        self._data_plane.fail(PeerLost(f"the connections to other nodes broke: {error!r}"))

    def announce_loss(self, lost: int) -> None:
        for connection in self._connections:
            self._send(connection, Kind.LOST, lost)

    def forget(self) -> None:
        self._close_all()

    def leave(self) -> None:
        self._is_closing = True
        for connection in self._connections:
            self._send(connection, Kind.GOODBYE)

    def close(self) -> None:
        """Waits for the goodbyes of all peers: nothing is in flight then. Raises `PeerLost`."""
        try:
            self._data_plane.wait_until(
                lambda: all(each.has_left for each in self._connections) and not self.is_sending
            )
        finally:
            self.release()

    def release(self) -> None:
        """Ends threads and connections without waiting for peers. Calling it again does nothing."""
        if self._listener.fileno() < 0:
            return
        self.receiver.close()
        self.sender.close()
        self._close_all()


_Action = Callable[[TcpTransport, Connection, Message], None]


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
