"""Frames between processes of one node: a header over a unix socket, the frame in memory that both map.

Small frames travel in the message itself. A tensor that an endpoint made in memory of `alloc` is not copied:
a message ahead of its frame says where it is, and tensors of several producers are mapped one after another
(`mapped_concat`). The file of a block is passed once. Besides credits, receivers answer with the numbers of
blocks whose last view has died. Sockets have abstract names that the kernel chooses and check the peer's uid.

The program's thread reads all sockets while it waits. What a socket does not take at once is sent by a thread
(`SendQueue`), so nobody waits for a receiver's program. A peer is also lost when its process ends.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError, DeviceMemory, PeerAccess
from meshctl.runtime.devices.device_buffers import DeviceBuffer, DeviceBuffers
from meshctl.runtime.transports.buffers.arena import ArenaError, Block, Mapped
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, BufferPool, BufferRef, LeaseState
from meshctl.runtime.transports.buffers.frames import Frame, bytes_of
from meshctl.runtime.transports.buffers.mapped_concat import MappedConcat
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost, ProtocolError
from meshctl.runtime.transports.local.blocks import PLACE, PeerBlocks, Use, introduced
from meshctl.runtime.transports.local.connection import (
    MAX_FILES,
    Connection,
    SendQueue,
    TooManyFiles,
    accepted,
    close_all,
    listen,
)
from meshctl.runtime.transports.peers import HEAD, Action, Kind, Message, PeerTransport
from meshctl.runtime.transports.transport import Delivery, Lease

_RETURNED = struct.Struct("<Bqi")
"""The use of a block, its number, and for a registered buffer the tag of its lease."""


class LocalTransport(PeerTransport[Connection]):
    shares_memory = True

    def __init__(
        self,
        data_plane: DataPlane,
        token: str,
        memory: DeviceMemory | None = None,
        access: PeerAccess | None = None,
    ) -> None:
        """`token` is the run's; a connection without it is refused. Tensors of a device travel in its
        `memory` where `access` says that peers can read it."""
        super().__init__(data_plane, token)
        self._listener = listen()
        self.address = f"{os.getpid()} {self._listener.getsockname().hex()}"
        self._pidfds: dict[int, int] = {}
        """Job rank of a peer -> the file that becomes readable when its process ends."""
        self.pool = BufferPool(data_plane, self._on_block_dropped)
        if memory and access:
            self.pool.device = DeviceBuffers(self._job_rank, memory, access, self._on_device_block_dropped)
        self.peer_blocks = PeerBlocks()
        self.mapped_concat = MappedConcat(self._memory_of)
        self.send_queue = SendQueue(self._on_send_error, self._on_thread_error)
        self._is_closed = False
        data_plane.add_file(self._listener.fileno(), self._accept)

    def connect(self, addresses: Mapping[int, str]) -> None:
        for peer, address in addresses.items():
            if peer != self._job_rank:
                self._addresses[peer] = address
                self._watch_process(peer, int(address.split()[0]))
        self._data_plane.add(addresses, self)

    # Memory

    def alloc(self, nbytes: int) -> Tensor:
        return self.pool.alloc(nbytes)

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        return self.pool.accepts(to, is_final, tensor)

    def is_mappable(self, tensor: Tensor) -> bool:
        return self.pool.is_mappable(tensor)

    def is_read_only(self, tensor: Tensor) -> bool:
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        is_in_block = any(memory.contains(address, nbytes) for memory in self.peer_blocks.read_only)
        return is_in_block or self.mapped_concat.contains(address)

    def concat(self, tensors: list[Tensor]) -> Tensor:
        whole = self.mapped_concat.concat(tensors)
        return super().concat(tensors) if whole is None else whole

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
        connection = self._connection_to(to)
        state: LeaseState = lease.state
        self._send_out_of_band(connection, tag, state.out_of_band)
        if state.block:
            place, files = introduced(connection, state.block, 0, len(lease.frame), write)
            self._send(connection, Kind.WRITE if write else Kind.BLOCK, tag, place, files)
        else:
            self._send(connection, Kind.FRAME, tag, bytes_of(lease.frame))
        transfers, device = self._data_plane.transfers, self.pool.device
        on_device = [one.tensor for one in state.out_of_band if isinstance(one, DeviceBuffer)]
        if on_device and transfers and device and device.needs_transfer(to):
            transfers.send(to, on_device)

    def _send_out_of_band(
        self, connection: Connection, tag: int, tensors: Sequence[BufferRef | DeviceBuffer]
    ) -> None:
        """Sends one receiver the places of the tensors of a frame, in their order."""
        refs: list[BufferRef] = []
        for one in tensors:
            if isinstance(one, BufferRef):
                refs.append(one)
            elif self.pool.device:
                self._send_refs(connection, tag, refs)
                refs = []
                self._send(connection, Kind.DEVICE, tag, self.pool.device.encode(connection.job_rank, one))
        self._send_refs(connection, tag, refs)

    def _send_refs(self, connection: Connection, tag: int, refs: Sequence[BufferRef]) -> None:
        for at in range(0, len(refs), MAX_FILES):
            some = refs[at : at + MAX_FILES]
            places = [introduced(connection, ref.block, ref.offset, ref.nbytes) for ref in some]
            files = [file for _, new in places for file in new]
            self._send(connection, Kind.OUT_OF_BAND, tag, b"".join(place for place, _ in places), files)

    def needs_no_lease(self, to: Sequence[int], frame: Frame) -> bool:
        is_small = frame.nbytes <= INLINE_MAX and not frame.out_of_band
        return is_small and self._job_rank not in to and not self._data_plane.context.has_digests

    def post_frame(self, to: Sequence[int], tag: int, frame: Frame) -> None:
        body = frame.to_bytes()
        for receiver in to:
            self._send(self._connection_to(receiver), Kind.FRAME, tag, body)

    def _send(
        self,
        connection: Connection,
        kind: Kind,
        tag: int = 0,
        body: bytes = b"",
        files: Sequence[int] = (),
    ) -> None:
        head = HEAD.pack(kind, self._generation, tag, len(body))
        self.send_queue.push(connection, head + body, files)

    def _dial(self, address: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(bytes.fromhex(address.split()[1]))
        except OSError:
            sock.close()
            raise
        return sock

    def _new(self, sock: socket.socket, job_rank: int = -1, generation: int = 0) -> Connection:
        return Connection(sock, job_rank, generation)

    def _watch(self, connection: Connection) -> None:
        self._data_plane.add_file(connection.sock.fileno(), partial(self._read, connection))

    def _on_send_error(self, connection: Connection, error: OSError) -> None:
        how = f"cannot be sent to: {error.strerror}"
        self._data_plane.fail(self._data_plane.peer_lost(connection.job_rank, how))

    # Receiving

    def _accept(self) -> None:
        """Accepts all pending connections, and reads their first messages."""
        for sock in accepted(self._listener):
            connection = self._new(sock)
            self._watch(connection)
            self._read(connection)

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
            self._refuse(connection, error)
        finally:
            close_all(files)
        return True

    def _on_frame(self, connection: Connection, message: Message) -> None:
        self._receive(connection, message.tag, message.data)

    def _on_block(self, connection: Connection, message: Message) -> None:
        number, *rest = PLACE.unpack(message.data)
        release = None
        if message.kind == Kind.BLOCK:
            release = partial(self._release, connection, Use.FRAME, number)
        view = self.peer_blocks.view(connection.job_rank, (number, *rest), message.files, release)
        self._receive(connection, message.tag, view)

    def _receive(self, connection: Connection, tag: int, frame: Tensor | bytes) -> None:
        out_of_band, connection.out_of_band = connection.out_of_band, []
        clear_to_send = partial(self._send, connection, Kind.CLEAR_TO_SEND)
        self._data_plane.on_message(connection.job_rank, tag, frame, out_of_band, clear_to_send)

    def _on_out_of_band(self, connection: Connection, message: Message) -> None:
        files = [*message.files]
        for number, size, offset, nbytes in PLACE.iter_unpack(message.data):
            new = [files.pop(0)] if size and files else []
            release = partial(self._release, connection, Use.REGISTERED, number, message.tag)
            view = self.peer_blocks.view(connection.job_rank, (number, size, offset, nbytes), new, release)
            connection.out_of_band.append(view)

    def _on_device(self, connection: Connection, message: Message) -> None:
        if self.pool.device is None:
            raise ProtocolError(f"kind {message.kind}")

        def release(block: int) -> None:
            self._release(connection, Use.DEVICE, block)

        tensor = self.pool.device.decode(connection.job_rank, message.data, release)
        if isinstance(tensor, int) and self._data_plane.transfers is None:
            raise ProtocolError("a transfer, where there are none")
        connection.out_of_band.append(tensor)

    def _on_drop(self, connection: Connection, message: Message) -> None:
        peer, device = connection.job_rank, self.pool.device
        use, number, _ = _RETURNED.unpack(message.data)
        if use == Use.FRAME:
            for mapped in self.peer_blocks.drop(peer, number):
                self.mapped_concat.forget(mapped)
        elif use == Use.DEVICE and device and device.close_block(peer, number):
            self._release(connection, Use.DEVICE, number)
        else:
            raise ProtocolError(f"kind {message.kind}")

    def _on_free(self, connection: Connection, message: Message) -> None:
        peer, device = connection.job_rank, self.pool.device
        use, number, tag = _RETURNED.unpack(message.data)
        if use == Use.FRAME:
            self.pool.arena.give_back(number, peer)
        elif use == Use.REGISTERED:
            self.pool.arena.give_back(number, (peer, tag))
        elif use == Use.DEVICE and device:
            device.arena.give_back(number, peer)
        else:
            raise ProtocolError(f"kind {message.kind}")

    ACTIONS: Mapping[int, Action] = {
        **PeerTransport.ACTIONS,
        Kind.FRAME: _on_frame,
        Kind.BLOCK: _on_block,
        Kind.WRITE: _on_block,
        Kind.OUT_OF_BAND: _on_out_of_band,
        Kind.DEVICE: _on_device,
        Kind.DROP: _on_drop,
    }
    ANSWERS: Mapping[int, Action] = {**PeerTransport.ANSWERS, Kind.FREE: _on_free}

    # Blocks

    def _release(self, connection: Connection, use: Use, block: int, tag: int = 0) -> None:
        """Returns a block, whose last view has died, to the peer that owns it. `tag` is needed for a
        registered buffer. Called on any thread, at any moment."""
        if not self._is_closed:
            self._send(connection, Kind.FREE, body=_RETURNED.pack(use, block, tag))

    def _on_block_dropped(self, block: Block) -> None:
        if isinstance(block.memory, Mapped):
            self.mapped_concat.forget(block.memory)
        for peer in {peer for peer, _ in block.known}:
            self._send(self._to[peer], Kind.DROP, body=_RETURNED.pack(Use.FRAME, block.number, 0))

    def _on_device_block_dropped(self, peer: int, block: int) -> None:
        self._send(self._to[peer], Kind.DROP, body=_RETURNED.pack(Use.DEVICE, block, 0))

    # Ends

    def _shut(self, connection: Connection) -> None:
        self._data_plane.remove_file(connection.sock.fileno())
        self.send_queue.drop(connection)
        connection.sock.close()

    def _watch_process(self, peer: int, pid: int) -> None:
        try:
            file = self._pidfds[peer] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._data_plane.on_peer_ended(peer, "is gone")
        else:
            self._data_plane.add_file(file, partial(self._on_process_ended, peer))

    def _forget_process(self, peer: int) -> None:
        if (file := self._pidfds.pop(peer, None)) is not None:
            self._data_plane.remove_file(file)
            os.close(file)

    def _on_process_ended(self, peer: int) -> None:
        """Reads what a process sent before its end, and records whether it said goodbye."""
        self._forget_process(peer)
        self._accept()
        connections = [one for one in (self._to.get(peer), self._from.get(peer)) if one]
        for connection in connections:
            while connection.is_open and self._read(connection):
                pass
        has_left = any(connection.has_left for connection in connections)
        self._data_plane.on_peer_ended(peer, "has ended" if has_left else "is gone")

    def reopen(self, job_ranks: Iterable[int]) -> None:
        peers = [*job_ranks]
        super().reopen(peers)
        for peer in peers:
            self._forget_process(peer)
        for mapped in self.peer_blocks.drop_peers(peers):
            self.mapped_concat.forget(mapped)
        self.pool.forget_peers(peers)

    def announce_loss(self, lost: int) -> None:
        if not self._is_closed:
            self._accept()
            super().announce_loss(lost)

    def leave(self) -> None:
        self._accept()
        super().leave()

    def forget(self) -> None:
        self._is_closed = True
        self.pool.forget()
        for connection in self._connections:
            connection.sock.close()
        self._listener.close()

    def _finish(self) -> None:
        self.send_queue.finish()

    def release(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._is_closed = True
        self._data_plane.remove_file(self._listener.fileno())
        for connection in self._connections:
            self._shut(connection)
        for peer in [*self._pidfds]:
            self._forget_process(peer)
        self._listener.close()
        self.pool.close()
        self.peer_blocks.clear()
        self.mapped_concat.clear()
        self.send_queue.close()
