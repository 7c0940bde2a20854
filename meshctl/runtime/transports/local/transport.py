"""Frames between processes of one node: a header over a unix socket, the frame in memory that both map.

The sender of frames opens the connection to their receiver, so only job ranks that share samples have one. It
carries frames and invitations to write to a frame. In the other direction travel credits and the numbers of
blocks whose last view has died. Small frames travel in the message itself. A tensor that an endpoint made in
memory of `alloc` is not copied: a message ahead of its frame says where it is, and tensors of several
producers are mapped one after another (`mapped_concat`). The file of a block is passed once. Sockets have
abstract names that the kernel chooses and check the peer's uid; the first message has the run's token and the
generations of both ends.

The program's thread reads all sockets while it waits. What a socket does not take at once is sent by a thread
(`SendQueue`), so nobody waits for a receiver's program. A peer is lost when its connection ends without a
goodbye, or when its process ends.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError, DeviceMemory, PeerAccess
from meshctl.runtime.devices.device_buffers import DeviceBuffers
from meshctl.runtime.transports.buffers.arena import ArenaError, Block, Mapped
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, BufferPool, LeaseState
from meshctl.runtime.transports.buffers.frames import bytes_of
from meshctl.runtime.transports.buffers.mapped_concat import MappedConcat
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.local.connection import (
    Address,
    Connection,
    Listener,
    SendQueue,
    TooManyFiles,
    close_all,
)
from meshctl.runtime.transports.local.messages import HEAD, Kind, Message, Use
from meshctl.runtime.transports.local.out_of_band import OutOfBand, PeerBlocks, introduce
from meshctl.runtime.transports.transport import Delivery, Lease, Transport


class LocalTransport(Transport):
    shares_memory = True
    inline_max = INLINE_MAX

    def __init__(
        self,
        data_plane: DataPlane,
        token: str,
        memory: DeviceMemory | None = None,
        access: PeerAccess | None = None,
    ) -> None:
        """`token` is the run's; a connection without it is refused. Tensors of a device travel in its
        `memory` where `access` says that peers can read it."""
        self._data_plane, self._token = data_plane, token.encode()
        self._job_rank = data_plane.job_rank
        self._generation = data_plane.generation_of(self._job_rank)
        self._listener = Listener()
        self.address = self._listener.address
        self._addresses: dict[int, Address] = {}
        self._to: dict[int, Connection] = {}
        self._from: dict[int, Connection] = {}
        self._processes = PeerProcesses(data_plane, self._on_process_ended)
        self.pool = BufferPool(data_plane, self._on_block_dropped)
        if memory and access:
            self.pool.device = DeviceBuffers(self._job_rank, memory, access, self._on_device_block_dropped)
        self.peer_blocks = PeerBlocks()
        self.mapped_concat = MappedConcat(self._memory_of)
        self.send_queue = SendQueue(self._on_send_error)
        self.out_of_band = OutOfBand(data_plane, self.pool, self.peer_blocks, self._send, self._release)
        self._is_leaving = self._is_closed = False
        data_plane.add_file(self._listener.fileno(), self._accept)

    def connect(self, addresses: Mapping[int, Address]) -> None:
        """Registers where peers listen. A connection is opened when there is something to send."""
        for peer, address in addresses.items():
            if peer == self._job_rank:
                continue
            self._addresses[peer] = address
            self._processes.watch(peer, address.pid)
        self._data_plane.add(addresses, self)

    def address_of(self, peer: int) -> Address:
        return self._addresses[peer]

    # Memory

    def alloc(self, nbytes: int) -> Tensor | None:
        return self.pool.alloc(nbytes)

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        return self.pool.accepts(to, is_final, tensor)

    def is_mappable(self, tensor: Tensor) -> bool:
        return self.pool.is_mappable(tensor)

    def is_read_only(self, tensor: Tensor) -> bool:
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        is_in_block = any(memory.contains(address, nbytes) for memory in self.peer_blocks.read_only)
        return is_in_block or self.mapped_concat.contains(address)

    def concat(self, tensors: Sequence[Tensor]) -> Tensor | None:
        return self.mapped_concat.concat(tensors)

    def lease(self, to: Sequence[int], tag: int, nbytes: int, out_of_band: Sequence[Tensor] = ()) -> Lease:
        return self.pool.lease(to, tag, nbytes, out_of_band)

    def own_delivery(self, lease: Lease) -> Delivery:
        return self.pool.own_delivery(lease)

    def _memory_of(self, address: int, nbytes: int) -> Mapped | None:
        """Returns the shared memory, of this process or of a peer, that holds `nbytes` at an address."""
        own = [block.memory for block in [*self.pool.registered.values()]]
        for memory in (*self.peer_blocks, *own):
            if isinstance(memory, Mapped) and memory.contains(address, nbytes):
                return memory
        return None

    # Sending

    def post(self, to: int, tag: int, lease: Lease, *, write: bool = False) -> None:
        connection = self._to.get(to) or self._connection_to(to)
        state: LeaseState = lease.state
        if state.out_of_band:
            self.out_of_band.send(connection, tag, state.out_of_band)
        if state.block:
            kind = Kind.WRITE if write else Kind.BLOCK
            size, files = introduce(connection, state.block, write)
            self._send(connection, kind, tag, state.block.number, size, len(lease.frame), files=files)
        else:
            self.post_inline([to], tag, bytes_of(lease.frame))
        if state.out_of_band:
            self.out_of_band.transfer(to, state.out_of_band)

    def post_inline(self, to: Sequence[int], tag: int, frame: bytes) -> None:
        message = HEAD.pack(Kind.INLINE, self._generation, tag, 0, 0, len(frame)) + frame
        for receiver in to:
            self.send_queue.push(self._to.get(receiver) or self._connection_to(receiver), message)

    def credit(self, to: int, tag: int) -> None:
        if to in self._from:  # the peer may have been replaced
            self._send(self._from[to], Kind.CREDIT, tag)

    def _send(
        self,
        connection: Connection,
        kind: Kind,
        tag: int = 0,
        block: int = 0,
        size: int = 0,
        nbytes: int = 0,
        body: bytes = b"",
        files: Sequence[int] = (),
    ) -> None:
        head = HEAD.pack(kind, self._generation, tag, block, size, nbytes)
        self.send_queue.push(connection, head + body, files)

    def _connection_to(self, peer: int) -> Connection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        generation = self._data_plane.generation_of(peer)
        try:
            sock.connect(self._addresses[peer].name)
        except OSError:
            if not self._data_plane.context.has_left(peer):
                sock.close()
                raise self._data_plane.peer_lost(peer, "is gone") from None
            connection = self._to[peer] = Connection(sock, peer, generation)
            connection.drop_all()
            return connection
        connection = self._to[peer] = self._open(Connection(sock, peer, generation))
        self._send(connection, Kind.HELLO, self._job_rank, generation, body=self._token)
        return connection

    def _open(self, connection: Connection) -> Connection:
        connection.actions = self._ANSWERS if connection.is_outgoing else self._GREETINGS
        self._data_plane.add_file(connection.sock.fileno(), partial(self._read, connection))
        return connection

    def _on_send_error(self, connection: Connection, error: OSError) -> None:
        how = f"cannot be sent to: {error.strerror}"
        self._data_plane.fail(self._data_plane.peer_lost(connection.job_rank, how))

    # Receiving

    def _accept(self) -> None:
        """Accepts all pending connections, and reads their first messages."""
        for sock in self._listener.accept():
            self._read(self._open(Connection(sock)))

    def _read(self, connection: Connection) -> bool:
        """Handles the next message of a connection, and returns False if there is none yet."""
        files: Sequence[int] = ()
        try:
            message = connection.receive()
            if message is None:
                self._on_end(connection)
            else:
                files = message.files
                self.dispatch(connection, message)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass  # the peer left some messages unread; what it sent before its end comes next
        except TooManyFiles:
            name = self._data_plane.name_of(self._job_rank)
            self._data_plane.fail(PeerLost(f"{name} has too many files open for what it is sent"))
        except (struct.error, ArenaError, DeviceError, ProtocolError) as error:
            self._shut(connection)
            if connection.job_rank >= 0:
                how = f"sent bytes that are not a message: {error}"
                self._data_plane.fail(self._data_plane.peer_lost(connection.job_rank, how))
        finally:
            if files:
                close_all(files)
        return True

    def dispatch(self, connection: Connection, message: Message) -> None:
        """Acts on a message. Raises `ProtocolError`, `ArenaError`, `DeviceError`, `struct.error`."""
        if message.generation != connection.generation and connection.job_rank >= 0:
            return  # of processes that were replaced
        action = connection.actions.get(message.kind)
        if action is None:
            raise ProtocolError(f"kind {message.kind}")
        action(self, connection, message)

    def _on_hello(self, connection: Connection, message: Message) -> None:
        peer, plane = message.tag, self._data_plane
        is_known = peer in self._addresses and peer not in self._from
        if not hmac.compare_digest(message.body, self._token) or not is_known:
            raise ProtocolError("a wrong greeting")
        if (message.generation, message.block) != (plane.generation_of(peer), self._generation):
            raise ProtocolError("a greeting of another generation")
        connection.job_rank, connection.generation = peer, message.generation
        connection.actions = self._ACTIONS
        self._from[peer] = connection
        if self._is_leaving:
            self._send(connection, Kind.GOODBYE)

    def _on_goodbye(self, connection: Connection, message: Message) -> None:
        connection.has_left = True

    def _on_lost(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_peer_lost(message.tag, connection.job_rank)

    def _on_inline(self, connection: Connection, message: Message) -> None:
        if len(message.body) != message.nbytes:
            raise ProtocolError(f"a frame of {len(message.body)} bytes whose header states {message.nbytes}")
        self._on_frame(connection, message.tag, message.body)

    def _on_block(self, connection: Connection, message: Message) -> None:
        memory = self.peer_blocks.get(connection.job_rank, message.block, message.size, message.files)
        release = partial(self._release, connection, Use.FRAME, message.block)
        self._on_frame(connection, message.tag, memory.view(0, message.nbytes, release))

    def _on_write(self, connection: Connection, message: Message) -> None:
        peer = connection.job_rank
        memory = self.peer_blocks.get(peer, message.block, message.size, message.files, write=True)
        self._on_frame(connection, message.tag, memory.view(0, message.nbytes))

    def _on_frame(self, connection: Connection, tag: int, frame: Tensor | bytes) -> None:
        if not connection.out_of_band:
            self._data_plane.on_frame(connection.job_rank, tag, frame)
            return
        self._data_plane.check_slot(connection.job_rank, tag)
        out_of_band, connection.out_of_band = connection.out_of_band, []
        clear_to_send = partial(self._send, connection, Kind.CLEAR_TO_SEND)
        self._data_plane.on_message(connection.job_rank, tag, frame, out_of_band, clear_to_send)

    def _on_out_of_band(self, connection: Connection, message: Message) -> None:
        self.out_of_band.on_refs(connection, message)

    def _on_device(self, connection: Connection, message: Message) -> None:
        self.out_of_band.on_device(connection, message)

    def _on_drop(self, connection: Connection, message: Message) -> None:
        peer, device = connection.job_rank, self.pool.device
        if message.tag == Use.FRAME:
            for mapped in self.peer_blocks.drop(peer, message.block):
                self.mapped_concat.forget(mapped)
        elif message.tag == Use.DEVICE and device and device.close_block(peer, message.block):
            self._release(connection, Use.DEVICE, message.block)
        else:
            raise ProtocolError(f"kind {message.kind}")

    def _on_credit(self, connection: Connection, message: Message) -> None:
        self._data_plane.on_credit(connection.job_rank, message.tag)

    def _on_free(self, connection: Connection, message: Message) -> None:
        peer, device = connection.job_rank, self.pool.device
        if message.tag == Use.FRAME:
            self.pool.arena.give_back(message.block, peer)
        elif message.tag == Use.REGISTERED:
            self.pool.arena.give_back(message.block, (peer, message.nbytes))
        elif message.tag == Use.DEVICE and device:
            device.arena.give_back(message.block, peer)
        else:
            raise ProtocolError(f"the answer {message.kind}")

    def _on_clear_to_send(self, connection: Connection, message: Message) -> None:
        if self._data_plane.transfers is None:
            raise ProtocolError(f"the answer {message.kind}")
        self._data_plane.transfers.clear_to_send(connection.job_rank)

    _GREETINGS: Mapping[int, _Action] = {Kind.HELLO: _on_hello}
    """Kind -> action, for the first message from the process that opened the connection."""
    _ACTIONS: Mapping[int, _Action] = {
        Kind.INLINE: _on_inline,
        Kind.BLOCK: _on_block,
        Kind.WRITE: _on_write,
        Kind.OUT_OF_BAND: _on_out_of_band,
        Kind.DEVICE: _on_device,
        Kind.DROP: _on_drop,
        Kind.GOODBYE: _on_goodbye,
        Kind.LOST: _on_lost,
    }
    """Kind -> action, for its further messages."""
    _ANSWERS: Mapping[int, _Action] = {
        Kind.CREDIT: _on_credit,
        Kind.FREE: _on_free,
        Kind.CLEAR_TO_SEND: _on_clear_to_send,
        Kind.GOODBYE: _on_goodbye,
        Kind.LOST: _on_lost,
    }
    """Kind -> action, for messages from the process that accepted the connection."""

    # Blocks

    def _release(self, connection: Connection, use: Use, block: int, tag: int = 0) -> None:
        """Returns a block, whose last view has died, to the peer that owns it. `tag` is needed for a
        registered buffer. Called on any thread, at any moment."""
        if not self._is_closed:
            self._send(connection, Kind.FREE, use, block, nbytes=tag)

    def _on_block_dropped(self, block: Block) -> None:
        if isinstance(block.memory, Mapped):
            self.mapped_concat.forget(block.memory)
        for peer in {peer for peer, _ in block.known}:
            self._send(self._to[peer], Kind.DROP, Use.FRAME, block.number)

    def _on_device_block_dropped(self, peer: int, block: int) -> None:
        self._send(self._to[peer], Kind.DROP, Use.DEVICE, block)

    # Ends

    @property
    def _connections(self) -> list[Connection]:
        return [*self._to.values(), *self._from.values()]

    def _on_end(self, connection: Connection) -> None:
        self._shut(connection)
        if connection.job_rank < 0 or connection.has_left:
            return
        connection.has_left = self._data_plane.context.has_left(connection.job_rank)
        if not connection.has_left:
            self._data_plane.fail(self._data_plane.peer_lost(connection.job_rank, "is gone"))

    def _shut(self, connection: Connection) -> None:
        self._data_plane.remove_file(connection.sock.fileno())
        connection.sock.close()

    def _on_process_ended(self, peer: int) -> None:
        """Reads what a process sent before its end, and records whether it said goodbye."""
        self._accept()
        connections = [one for one in (self._to.get(peer), self._from.get(peer)) if one]
        for connection in connections:
            while connection.is_open and self._read(connection):
                pass
        has_left = any(connection.has_left for connection in connections)
        self._data_plane.on_peer_ended(peer, "has ended" if has_left else "is gone")

    def reopen(self, job_ranks: Sequence[int]) -> None:
        for peer in job_ranks:
            for connections in (self._to, self._from):
                if connection := connections.pop(peer, None):
                    self._shut(connection)
            self._addresses.pop(peer, None)
            self._processes.forget(peer)
        for mapped in self.peer_blocks.drop_peers(job_ranks):
            self.mapped_concat.forget(mapped)
        self.pool.forget_peers(job_ranks)

    def announce_loss(self, lost: int) -> None:
        if self._is_closed:
            return
        self._accept()
        for connection in self._connections:
            self._send(connection, Kind.LOST, lost)

    def leave(self) -> None:
        self._accept()
        self._is_leaving = True
        for connection in self._connections:
            self._send(connection, Kind.GOODBYE)

    def forget(self) -> None:
        self._is_closed = True
        self.pool.forget()
        for connection in self._connections:
            connection.sock.close()
        self._listener.close()

    def close(self) -> None:
        """Waits for the goodbyes of all peers: nothing is in flight then. Raises `PeerLost`."""
        try:
            self._data_plane.wait_until(lambda: all(each.has_left for each in self._connections))
            self.send_queue.finish()
        finally:
            self.release()

    def release(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._is_closed = True
        self._data_plane.remove_file(self._listener.fileno())
        for connection in self._connections:
            self._shut(connection)
        self._processes.close()
        self._listener.close()
        self.pool.close()
        self.peer_blocks.clear()
        self.mapped_concat.clear()
        self.send_queue.close()


class PeerProcesses:
    """The processes of the peers of a node, watched for their ends."""

    def __init__(self, data_plane: DataPlane, on_end: Callable[[int], None]) -> None:
        """`on_end` is called with the job rank of a process that has ended, in a wait of the data plane."""
        self._data_plane, self._on_end = data_plane, on_end
        self._pidfds: dict[int, int] = {}

    def watch(self, peer: int, pid: int) -> None:
        try:
            file = os.pidfd_open(pid)
        except ProcessLookupError:
            self._data_plane.on_peer_ended(peer, "is gone")
        else:
            self._pidfds[peer] = file
            self._data_plane.add_file(file, partial(self._on_ended, peer))

    def _on_ended(self, peer: int) -> None:
        self.forget(peer)
        self._on_end(peer)

    def forget(self, peer: int) -> None:
        """Ends the watch of a process, if there is one."""
        if (file := self._pidfds.pop(peer, None)) is not None:
            self._data_plane.remove_file(file)
            os.close(file)

    def close(self) -> None:
        for peer in [*self._pidfds]:
            self.forget(peer)


_Action = Callable[[LocalTransport, Connection, Message], None]
