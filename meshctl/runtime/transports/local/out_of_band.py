"""Tensors beside a frame between two processes of a node: messages ahead of the frame say where they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Protocol

from meshctl.runtime.devices.device_buffers import DeviceBuffer
from meshctl.runtime.transports.buffers.arena import Block, Mapped
from meshctl.runtime.transports.buffers.buffer_pool import BufferPool, BufferRef
from meshctl.runtime.transports.buffers.frames import MAX_OUT_OF_BAND
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ProtocolError
from meshctl.runtime.transports.local.connection import Connection
from meshctl.runtime.transports.local.messages import BUFFER_REF, MAX_FILES, MAX_REFS, Kind, Message, Use


class PeerBlocks:
    """Blocks of peers that are mapped into this process."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int, bool], Mapped] = {}
        """(Job rank of the peer, number of the block, whether this process may write to it) -> the mapped
        block."""

    def get(self, peer: int, number: int, size: int, files: Sequence[int], *, write: bool = False) -> Mapped:
        """Returns a peer's block of `size` bytes. `files` contains its file with the first message about it,
        and is empty later. Raises `ProtocolError` for a block that is unknown or comes twice, and
        `ArenaError`."""
        key = (peer, number, write)
        if files and key in self._mapped:
            raise ProtocolError(f"block {number}, once more")
        if files:
            self._mapped[key] = Mapped(files[0], size, write=write)
        mapped = self._mapped.get(key)
        if mapped is None:
            raise ProtocolError(f"the unknown block {number}")
        return mapped

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


class Send(Protocol):
    """Sends a message to a peer."""

    def __call__(
        self,
        connection: Connection,
        kind: Kind,
        tag: int = 0,
        *,
        body: bytes = b"",
        files: Sequence[int] = (),
    ) -> None: ...


class OutOfBand:
    """Both ends of the tensors that travel out of band."""

    def __init__(
        self,
        data_plane: DataPlane,
        pool: BufferPool,
        peer_blocks: PeerBlocks,
        send: Send,
        release: Callable[[Connection, Use, int, int], None],
    ) -> None:
        """`release` returns a block, whose last view has died, to the peer that owns it."""
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
                body = self._pool.device.encode(connection.job_rank, one)
                self._send(connection, Kind.DEVICE, tag, body=body)
        self._send_refs(connection, tag, refs)

    def _send_refs(self, connection: Connection, tag: int, refs: Sequence[BufferRef]) -> None:
        body, files = b"", list[int]()
        for number, ref in enumerate(refs, 1):
            size, new = introduce(connection, ref.block)
            files += new
            body += BUFFER_REF.pack(ref.block.number, size, ref.offset, ref.nbytes)
            if len(body) == MAX_REFS * BUFFER_REF.size or len(files) == MAX_FILES or number == len(refs):
                self._send(connection, Kind.OUT_OF_BAND, tag, body=body, files=files)
                body, files = b"", []

    def transfer(self, to: int, tensors: Sequence[BufferRef | DeviceBuffer]) -> None:
        """Sends those tensors that the receiver cannot read, after their frame."""
        transfers, device = self._data_plane.transfers, self._pool.device
        on_device = [one.tensor for one in tensors if isinstance(one, DeviceBuffer)]
        if on_device and transfers and device and device.needs_transfer(to):
            transfers.send(to, on_device)

    def on_refs(self, connection: Connection, message: Message) -> None:
        """Raises `ProtocolError`, `ArenaError` and `struct.error`."""
        refs = [*BUFFER_REF.iter_unpack(message.body)]
        if len(connection.out_of_band) + len(refs) > MAX_OUT_OF_BAND:
            raise ProtocolError(f"more than {MAX_OUT_OF_BAND} tensors beside a frame")
        files = [*message.files]
        for number, size, offset, nbytes in refs:
            new = [files.pop(0)] if size and files else []
            memory = self._peer_blocks.get(connection.job_rank, number, size, new)
            release = partial(self._release, connection, Use.REGISTERED, number, message.tag)
            connection.out_of_band.append(memory.view(offset, nbytes, release))

    def on_device(self, connection: Connection, message: Message) -> None:
        """Raises `ProtocolError` and `DeviceError`."""
        device = self._pool.device
        if device is None or len(connection.out_of_band) >= MAX_OUT_OF_BAND:
            raise ProtocolError(f"kind {message.kind}")

        def release(block: int) -> None:
            self._release(connection, Use.DEVICE, block, 0)

        tensor = device.decode(connection.job_rank, message.body, release)
        if isinstance(tensor, int) and self._data_plane.transfers is None:
            raise ProtocolError("a transfer, where there are none")
        connection.out_of_band.append(tensor)


def introduce(connection: Connection, block: Block, write: bool = False) -> tuple[int, list[int]]:
    """Returns the size and the file of a block for the first message about it to a peer, and (0, []) for
    later ones. A file to write to counts on its own."""
    key = (connection.job_rank, write)
    if key in block.known:
        return 0, []
    block.known.add(key)
    return block.nbytes, [block.file]
