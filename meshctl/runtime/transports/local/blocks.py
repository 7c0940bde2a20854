"""Memory of the other processes of a node, of which messages say where it is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum

from torch import Tensor

from meshctl.runtime.transports.buffers.arena import Block, Mapped
from meshctl.runtime.transports.errors import ProtocolError
from meshctl.runtime.transports.local.connection import Connection

PLACE = struct.Struct("<qqqq")
"""A place in a block: the block's number, its size where its file comes along (else 0), and the offset and
the size of what is there. Sizes and offset are in bytes."""


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
