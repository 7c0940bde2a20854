"""Memory of the other processes of a node: blocks of frames, and tensors beside a frame, of which messages
ahead of the frame say where they are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.device_buffers import DeviceBuffer
from meshctl.runtime.transports.buffers.arena import Block, Mapped
from meshctl.runtime.transports.buffers.buffer_pool import BufferPool, BufferRef
from meshctl.runtime.transports.buffers.frames import MAX_OUT_OF_BAND
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ProtocolError
from meshctl.runtime.transports.local.connection import MAX_FILES, Connection
from meshctl.runtime.transports.peers import Kind, Message

PLACE = struct.Struct("<qqqq")
"""A place in a block: the block's number, its size where its file comes along (else 0), and the offset and
the size of what is there. Sizes and offset are in bytes."""
MAX_PLACES = 64
"""The most places of one message."""


class Use(IntEnum):
    """The use of a block."""

    FRAME = 0
    REGISTERED = 1
    DEVICE = 2


class PeerBlocks:
    """Blocks of peers that are mapped into this process."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int, bool], Mapped] = {}
        """(Job rank of the peer, number of the block, whether this process may write to it) -> the mapped
        block."""

    def view(
        self,
        peer: int,
        place: tuple[int, int, int, int],
        files: Sequence[int],
        gone: Callable[[], None] | None,
    ) -> Tensor:
        """Returns a view of a place, uint8 `[n]`. `files` contains the block's file with the first message
        about it, and is empty later. `gone` is called when the last view has died; without it this process
        may write. Raises `ProtocolError` for a block that is unknown or comes twice, and `ArenaError`."""
        number, size, offset, nbytes = place
        key = (peer, number, gone is None)
        if files and key in self._mapped:
            raise ProtocolError(f"block {number}, once more")
        if files:
            self._mapped[key] = Mapped(files[0], size, write=gone is None)
        mapped = self._mapped.get(key)
        if mapped is None:
            raise ProtocolError(f"the unknown block {number}")
        return mapped.view(offset, nbytes, gone)

    def drop(self, peer: int, number: int) -> list[Mapped]:
        """Forgets a block. Returns its mappings, which exist until their last view dies."""
        found = (self._mapped.pop((peer, number, write), None) for write in (False, True))
        return [mapped for mapped in found if mapped]

    def drop_peers(self, peers: Collection[int]) -> list[Mapped]:
        return [self._mapped.pop(key) for key in [*self._mapped] if key[0] in peers]

    @property
    def read_only(self) -> list[Mapped]:
        """The blocks that this process cannot write."""
        return [mapped for (_, _, write), mapped in self._mapped.items() if not write]

    def __iter__(self) -> Iterator[Mapped]:
        return iter([*self._mapped.values()])

    def clear(self) -> None:
        self._mapped.clear()


class OutOfBand:
    """Both ends of the tensors that travel out of band."""

    def __init__(
        self,
        data_plane: DataPlane,
        pool: BufferPool,
        peer_blocks: PeerBlocks,
        send: Callable[..., None],
        release: Callable[[Connection, Use, int, int], None],
    ) -> None:
        """`send` is that of the transport. `release` returns a block, whose last view has died, to the peer
        that owns it."""
        self._data_plane, self._pool, self._peer_blocks = data_plane, pool, peer_blocks
        self._send, self._release = send, release

    def send(self, connection: Connection, tag: int, tensors: Sequence[BufferRef | DeviceBuffer]) -> None:
        """Sends one receiver the places of the tensors of a frame, in their order."""
        refs: list[BufferRef] = []
        for one in tensors:
            if isinstance(one, BufferRef):
                refs.append(one)
            elif self._pool.device:
                self._send_refs(connection, tag, refs)
                refs = []
                self._send(connection, Kind.DEVICE, tag, self._pool.device.encode(connection.job_rank, one))
        self._send_refs(connection, tag, refs)

    def _send_refs(self, connection: Connection, tag: int, refs: Sequence[BufferRef]) -> None:
        body, files = b"", list[int]()
        for number, ref in enumerate(refs, 1):
            place, new = introduced(connection, ref.block, ref.offset, ref.nbytes)
            body, files = body + place, files + new
            if len(body) == MAX_PLACES * PLACE.size or len(files) == MAX_FILES or number == len(refs):
                self._send(connection, Kind.OUT_OF_BAND, tag, body, files)
                body, files = b"", []

    def transfer(self, to: int, tensors: Sequence[BufferRef | DeviceBuffer]) -> None:
        """Sends those tensors that the receiver cannot read, after their frame."""
        transfers, device = self._data_plane.transfers, self._pool.device
        on_device = [one.tensor for one in tensors if isinstance(one, DeviceBuffer)]
        if on_device and transfers and device and device.needs_transfer(to):
            transfers.send(to, on_device)

    def on_refs(self, connection: Connection, message: Message) -> None:
        """Raises `ProtocolError`, `ArenaError` and `struct.error`."""
        places = [*PLACE.iter_unpack(message.data)]
        if len(connection.out_of_band) + len(places) > MAX_OUT_OF_BAND:
            raise ProtocolError(f"more than {MAX_OUT_OF_BAND} tensors beside a frame")
        files = [*message.files]
        for number, size, offset, nbytes in places:
            new = [files.pop(0)] if size and files else []
            release = partial(self._release, connection, Use.REGISTERED, number, message.tag)
            view = self._peer_blocks.view(connection.job_rank, (number, size, offset, nbytes), new, release)
            connection.out_of_band.append(view)

    def on_device(self, connection: Connection, message: Message) -> None:
        """Raises `ProtocolError` and `DeviceError`."""
        device = self._pool.device
        if device is None or len(connection.out_of_band) >= MAX_OUT_OF_BAND:
            raise ProtocolError(f"kind {message.kind}")

        def release(block: int) -> None:
            self._release(connection, Use.DEVICE, block, 0)

        tensor = device.decode(connection.job_rank, message.data, release)
        if isinstance(tensor, int) and self._data_plane.transfers is None:
            raise ProtocolError("a transfer, where there are none")
        connection.out_of_band.append(tensor)


def introduced(
    connection: Connection, block: Block, offset: int, nbytes: int, write: bool = False
) -> tuple[bytes, list[int]]:
    """Returns a place in a block, with the block's size and file for the first message about it to a peer. A
    file to write to counts on its own."""
    key = (connection.job_rank, write)
    if key in block.known:
        return PLACE.pack(block.number, 0, offset, nbytes), []
    block.known.add(key)
    return PLACE.pack(block.number, block.nbytes, offset, nbytes), [block.file]
