"""Blocks of peers that are mapped into this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from meshctl.runtime.transports.buffers.arena import Mapped
from meshctl.runtime.transports.errors import ProtocolError


class PeerBlocks:
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
