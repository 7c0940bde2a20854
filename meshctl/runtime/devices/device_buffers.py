"""Tensors on a worker's device, as they travel out of band: in blocks that the other workers of the node
read, or by transfers to their devices.

    lease       copies the tensors into a block, where a receiver reads this device's memory
    encode      returns a message about a tensor for one receiver: its block, with the block's handle where
                the receiver does not know it yet; or only its size, where a transfer will bring the tensor
    decode      returns a view of the tensor of such a message, or its size where a transfer brings it

A receiver returns a block when its last view of the block has died and its device no longer reads it. A block
that is not used any more is freed after all peers that opened it have closed it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.devices.backend import ALIGN, DeviceMemory, PeerAccess, laid
from meshctl.runtime.transports.buffers.arena import Arena, ArenaError, Block, Piece

_REF = struct.Struct("<qqqq")
"""Number of the block, 0 if a transfer brings the tensor; size of the block where its handle follows, else
0; offset of the tensor in the block; size of the tensor. Sizes and offset are in bytes."""


@dataclass(frozen=True)
class DeviceBuffer:
    """A tensor on a device that travels out of band."""

    tensor: Tensor
    block: Block | None = None
    """The block with a copy of the tensor; None if no receiver can read this device's memory."""
    offset: int = 0
    """Offset of the copy in the block, in bytes."""


class DeviceBuffers:
    def __init__(
        self, job_rank: int, memory: DeviceMemory, access: PeerAccess, drop: Callable[[int, int], None]
    ) -> None:
        """`drop` is called with a peer's job rank and the number of a block. It tells the peer that the block
        is not used any more."""
        self._job_rank, self._memory, self._access, self._drop = job_rank, memory, access, drop
        self.arena = Arena(self._on_dropped, memory.make)
        self._opened: dict[tuple[int, int], Piece] = {}
        """(Job rank, number of a block) -> the piece of this peer, opened."""

    def accepts(self, to: Sequence[int], tensor: Tensor) -> bool:
        """Returns whether a tensor is on this device and can reach the devices of all receivers without host
        memory."""
        if not tensor.nbytes or tensor.is_meta or not self._memory.holds(tensor):
            return False
        return all(
            other == self._job_rank or self._access.path(self._job_rank, other) != "cpu" for other in to
        )

    def readers(self, to: Sequence[int]) -> list[int]:
        """Returns those of the receivers `to` that can read this device's memory. They include this job rank
        if it is a receiver."""
        mine = self._job_rank
        return [other for other in to if other == mine or self._access.path(mine, other) == "device"]

    def lease(self, to: Sequence[int], use: Hashable, tensors: Sequence[Tensor]) -> list[DeviceBuffer]:
        """Copies tensors into one block, unless none of the receivers `to` can read this device's memory.

        The copies are only queued on the device, so tensors may be announced to peers only after `finish`.
        `use` is that of `Arena.take`. Raises `DeviceError`.
        """
        readers = self.readers(to)
        if not readers:
            return [DeviceBuffer(tensor) for tensor in tensors]
        starts, total = laid([tensor.nbytes for tensor in tensors])
        block = self.arena.take(use, total, readers * len(tensors))  # a reader returns it once per view
        for tensor, at in zip(tensors, starts, strict=True):
            block.memory.view(at, tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return [DeviceBuffer(tensor, block, at) for tensor, at in zip(tensors, starts, strict=True)]

    def finish(self) -> None:
        """Waits until the device has copied all leased tensors."""
        self._memory.finish()

    def own_view(self, buffer: DeviceBuffer) -> Tensor:
        """Returns a view of a leased copy, uint8 `[n]`, where this job rank is itself a receiver."""
        assert buffer.block is not None
        give_back = partial(self.arena.give_back, buffer.block.number, self._job_rank)
        return buffer.block.memory.view(
            buffer.offset, buffer.tensor.nbytes, partial(self._memory.after, give_back)
        )

    def needs_transfer(self, to: int) -> bool:
        """Returns whether tensors reach a peer by a transfer."""
        return self._access.path(self._job_rank, to) == "nccl"

    # Messages

    def encode(self, to: int, buffer: DeviceBuffer) -> bytes:
        """Returns the message about a leased tensor for the receiver `to`."""
        block, nbytes = buffer.block, buffer.tensor.nbytes
        if block is None or self.needs_transfer(to):
            return _REF.pack(0, 0, 0, nbytes)
        is_new = (to, False) not in block.known
        block.known.add((to, False))
        if not is_new:
            return _REF.pack(block.number, 0, buffer.offset, nbytes)
        return _REF.pack(block.number, block.nbytes, buffer.offset, nbytes) + block.memory.handle

    def decode(self, source: int, data: bytes, gone: Callable[[int], None]) -> Tensor | int:
        """Returns a view of the tensor of a message of `source`, or its size in bytes where a transfer brings
        it. `gone` is called with the block's number when the last tensor derived from the view has died.
        Raises `ArenaError`, `DeviceError` and `struct.error` for malformed data."""
        number, size, at, nbytes = _REF.unpack_from(data)
        if nbytes <= 0 or number < 0 or at % ALIGN:
            raise ArenaError(f"a tensor of {nbytes} bytes at {at} in block {number}")
        if not number:
            return int(nbytes)
        if handle := data[_REF.size :]:
            if (source, number) in self._opened or size < 0:
                raise ArenaError(f"block {number} of {size} bytes, once more")
            self._opened[source, number] = self._memory.open(handle, size)
        piece = self._opened.get((source, number))
        if piece is None:
            raise ArenaError(f"the unknown block {number}")
        return piece.view(at, nbytes, partial(self._memory.after, partial(gone, number)))

    def close_block(self, source: int, number: int) -> bool:
        """Closes a peer's block of which this process has no view. Returns whether it was open."""
        piece = self._opened.pop((source, number), None)
        if piece is not None:
            piece.close()
        return piece is not None

    def close_peers(self, job_ranks: Collection[int]) -> None:
        """Closes all blocks of peers whose processes have been replaced."""
        for source, number in [key for key in self._opened if key[0] in job_ranks]:
            self.close_block(source, number)

    def close(self) -> None:
        """Closes the memory of the device at the end of the run. What a peer may still have open is not freed
        before the process ends."""
        self._memory.close()

    def _on_dropped(self, block: Block) -> None:
        for peer, _ in block.known:
            self._drop(peer, block.number)
