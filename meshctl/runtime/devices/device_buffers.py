"""A worker's device, as what lies on it goes beside frames: in blocks that the others of its node read, or by
transfers to their devices.

    lend        copies the tensors beside a frame into a block, where one of those who get them reads this
                device's memory
    said        what one of them is told of it: which block, and its handle where it does not know it; or only
                how many bytes will come
    heard       the view of what was said, or how many bytes a transfer brings

A block comes back when the last view of it has died everywhere and nothing on any device reads it any more.
One that is used no more is closed by all who opened it before it is freed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from meshctl.runtime.devices.backend import ALIGN, DeviceMemory, Neighbours, laid
from meshctl.runtime.transports.buffers.arena import Arena, ArenaError, Block, Piece

_WORDS = struct.Struct("<qqqq")
"""Block or 0, its bytes where its handle follows, where the tensor begins in it, bytes of the tensor."""


@dataclass(frozen=True)
class Lent:
    """A tensor that goes beside a frame."""

    tensor: Tensor
    block: Block | None = None
    """Where its bytes are for those who read this device's memory."""
    at: int = 0


class OnDevice:
    def __init__(
        self, place: int, memory: DeviceMemory, neighbours: Neighbours, drop: Callable[[int, int], None]
    ) -> None:
        """`drop` tells a place that a block, by number, is used no more."""
        self._place, self._memory, self._neighbours, self._drop = place, memory, neighbours, drop
        self.arena = Arena(self._dropped, memory.make)
        self._opened: dict[tuple[int, int], Piece] = {}

    def hands_over(self, to: Sequence[int], tensor: Tensor) -> bool:
        """Whether a tensor is here, and can get to the devices of all these places without the CPU's memory."""
        if not tensor.nbytes or tensor.is_meta or not self._memory.holds(tensor):
            return False
        return all(place == self._place or self._neighbours.way(self._place, place) != "cpu" for place in to)

    def readers(self, to: Sequence[int]) -> list[int]:
        """Those places that read this device's memory, this one's own among them."""
        return [
            place
            for place in to
            if place == self._place or self._neighbours.way(self._place, place) == "device"
        ]

    def lend(self, to: Sequence[int], use: Hashable, tensors: Sequence[Tensor]) -> list[Lent]:
        """Others may be told of them after `finish`. Raises `DeviceError`."""
        readers = self.readers(to)
        if not readers:
            return [Lent(tensor) for tensor in tensors]
        starts, total = laid([tensor.nbytes for tensor in tensors])
        block = self.arena.take(use, total, readers * len(tensors))  # each view of it is given back
        for tensor, at in zip(tensors, starts, strict=True):
            block.memory.view(at, tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return [Lent(tensor, block, at) for tensor, at in zip(tensors, starts, strict=True)]

    def finish(self) -> None:
        """Waits until what was lent is written."""
        self._memory.finish()

    def own(self, lent: Lent) -> Tensor:
        """What this place itself gets."""
        assert lent.block is not None
        gone = partial(self._memory.after, partial(self.arena.give_back, lent.block.number, self._place))
        return lent.block.memory.view(lent.at, lent.tensor.nbytes, gone)

    def goes(self, to: int) -> bool:
        """Whether what is lent to a place gets there by a transfer."""
        return self._neighbours.way(self._place, to) == "nccl"

    # Words

    def said(self, to: int, lent: Lent) -> bytes:
        if lent.block is None or self.goes(to):
            return _WORDS.pack(0, 0, 0, lent.tensor.nbytes)
        new = (to, False) not in lent.block.known
        lent.block.known.add((to, False))
        words = _WORDS.pack(lent.block.number, lent.block.nbytes if new else 0, lent.at, lent.tensor.nbytes)
        return words + (lent.block.memory.handle if new else b"")

    def heard(self, source: int, words: bytes, gone: Callable[[int], None]) -> Tensor | int:
        """A view, whose death `gone` tells with the block's number; or the bytes that a transfer brings.
        Raises `ArenaError`, `DeviceError` and `struct.error` for what nobody says."""
        number, size, at, nbytes = _WORDS.unpack_from(words)
        if nbytes <= 0 or number < 0 or at % ALIGN:
            raise ArenaError(f"a tensor of {nbytes} bytes at {at} in block {number}")
        if not number:
            return int(nbytes)
        if handle := words[_WORDS.size :]:
            if (source, number) in self._opened or size < 0:
                raise ArenaError(f"block {number} of {size} bytes, once more")
            self._opened[source, number] = self._memory.open(handle, size)
        piece = self._opened.get((source, number))
        if piece is None:
            raise ArenaError(f"the unknown block {number}")
        return piece.view(at, nbytes, partial(self._memory.after, partial(gone, number)))

    def shut(self, source: int, number: int) -> bool:
        """A block is used no more: nobody has a view of it. Whether it was open."""
        piece = self._opened.pop((source, number), None)
        if piece is not None:
            piece.close()
        return piece is not None

    def close(self) -> None:
        """At the end of the run. Memory that somebody may still have open lasts until the process ends."""
        self._memory.close()

    def _dropped(self, block: Block) -> None:
        for place, _ in block.known:
            self._drop(place, block.number)
