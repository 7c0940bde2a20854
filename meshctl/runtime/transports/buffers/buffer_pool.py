"""Memory that a worker leases to the other workers of its node: for frames, and for tensors out of band.

    frame          a block of the arena that all receivers read; a small frame needs none
    registered     a block that an endpoint writes its result to (`alloc`) and that receivers then read
    device         a block of the worker's device (`devices.device_buffers`)

Blocks are used again. A receiver that holds too many blocks (`MAX_HELD`) gets no more, and the error names
it.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.devices.backend import DeviceError, laid
from meshctl.runtime.devices.device_buffers import DeviceBuffer, DeviceBuffers
from meshctl.runtime.transports.buffers.arena import Arena, ArenaError, Block
from meshctl.runtime.transports.buffers.mapped_concat import starts_page
from meshctl.runtime.transports.buffers.memcpy import is_plain
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import BuffersHeld, SentMemoryWritten
from meshctl.runtime.transports.transport import Delivery, Lease

INLINE_MAX = 4096
"""Largest frame, in bytes, that is sent inside the message; also the largest tensor that is always copied
into its frame."""
ALLOC_MIN = 1 << 16
"""Smallest memory, in bytes, for which `alloc` makes a registered buffer."""
RETURN_WAIT_S = 0.25
"""Seconds to wait until a block is returned, before another one is made. There is no such wait until there is
a block for each slot and one that is being read."""
MAX_HELD = 8
"""The most blocks that a receiver may hold besides those that are in flight to it."""

SAMPLES, SAMPLE_BYTES = 8, 32
"""The number of samples that are kept of a range of bytes, and the size of each."""
MESSAGE = (
    "memory of `self.alloc` was written after it had been returned, while its consumers may read it: call "
    "`self.alloc` for every value that is returned"
)

Range = tuple[int, int]
"""The first byte in a block, and the one after the last."""


@dataclass(frozen=True)
class BufferRef:
    """A tensor in a registered buffer."""

    block: Block
    offset: int
    nbytes: int


@dataclass(frozen=True)
class LeaseState:
    """The block of a lease, where it has one, and its out-of-band tensors."""

    block: Block | None
    out_of_band: tuple[BufferRef | DeviceBuffer, ...] = ()


class BufferPool:
    def __init__(self, data_plane: DataPlane, drop: Callable[[Block], None]) -> None:
        """`drop` tells peers that a block is not used any more."""
        self.arena = Arena(self._on_dropped)
        self.registered: dict[int, Block] = {}
        """Registered buffers by address."""
        self.device: DeviceBuffers | None = None
        self._data_plane, self._drop, self._job_rank = data_plane, drop, data_plane.job_rank
        self._max_out_of_band: Counter[int] = Counter()
        """Tag -> the most tensors that have travelled out of band with one frame."""
        self._sent = SentMemory(has_digests=data_plane.context.has_digests)
        self._is_closed = False

    def alloc(self, nbytes: int) -> Tensor:
        """Returns uint8 `[nbytes]`: a registered buffer, unless it is small or there is no memory for one."""
        if nbytes < ALLOC_MIN or self._is_closed:
            return torch.empty(nbytes, dtype=torch.uint8)
        # a power of 2, so that there are few uses; pages that nobody touches take no memory
        size = 1 << (nbytes - 1).bit_length()
        try:
            block = self.arena.take(("registered", size), size, [self._job_rank])
        except ArenaError:
            return torch.empty(nbytes, dtype=torch.uint8)
        self.registered[block.memory.address] = block
        self._sent.forget(block)
        return self._own_view(block, 0, nbytes, self._job_rank)

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        """Returns whether a tensor can travel out of band (`Transport.accepts`)."""
        if self.device and self.device.accepts(to, tensor):
            return True
        return is_final and tensor.nbytes > INLINE_MAX and self._is_registered(tensor)

    def is_mappable(self, tensor: Tensor) -> bool:
        return self._is_registered(tensor) and starts_page(tensor)

    def _is_registered(self, tensor: Tensor) -> bool:
        if not self.registered or not is_plain(tensor):
            return False
        return tensor.untyped_storage().data_ptr() in self.registered

    def lease(self, to: Sequence[int], tag: int, nbytes: int, out_of_band: Sequence[Tensor]) -> Lease:
        """Implements `Transport.lease`. Raises `BuffersHeld`, `OutOfMemory`, `PeerLost`, and
        `SentMemoryWritten` where a tensor was sent before and has been written since."""
        try:
            return self._lease(to, tag, nbytes, out_of_band)
        except (ArenaError, DeviceError) as error:
            total = nbytes + sum(tensor.nbytes for tensor in out_of_band)
            raise self._data_plane.context.out_of_memory(total, tag, error) from None

    def _lease(self, to: Sequence[int], tag: int, nbytes: int, tensors: Sequence[Tensor]) -> Lease:
        self._sent.compare()
        out_of_band = self._lease_out_of_band(to, tag, tensors) if tensors else ()
        if nbytes <= INLINE_MAX:
            frame = torch.empty(nbytes, dtype=torch.uint8)
            return Lease(tuple(to), tag, frame, tensors, LeaseState(None, out_of_band))
        use = (tag, tuple(to))
        self._await_block(self.arena, use, nbytes)
        block = self.arena.take(use, nbytes, to)
        return Lease(tuple(to), tag, block.memory.view(0, nbytes), tensors, LeaseState(block, out_of_band))

    def own_delivery(self, lease: Lease) -> Delivery:
        """Returns the delivery of a lease to this job rank itself, where it is one of the receivers."""
        state: LeaseState = lease.state
        frame = lease.frame
        if state.block:
            frame = self._own_view(state.block, 0, len(frame), self._job_rank)
        return Delivery(frame, [self._own_out_of_band(lease.tag, one) for one in state.out_of_band])

    def forget_peers(self, job_ranks: Collection[int]) -> None:
        """Takes back all that peers of an older generation hold."""
        for arena in (self.arena, self.device.arena if self.device else None):
            if arena:
                arena.forget_holders(job_ranks)
        if self.device:
            self.device.close_peers(job_ranks)

    def close(self) -> None:
        self._is_closed = True
        self.arena.close()
        if self.device:
            self.device.close()

    def forget(self) -> None:
        """Gives up all blocks in a forked child: they belong to the parent process."""
        self._is_closed = True
        self.registered.clear()

    # Out of band

    def _lease_out_of_band(
        self, to: Sequence[int], tag: int, tensors: Sequence[Tensor]
    ) -> tuple[BufferRef | DeviceBuffer, ...]:
        on_device = [tensor for tensor in tensors if self.device and self.device.accepts(to, tensor)]
        leased = {id(one.tensor): one for one in self._lease_on_device(to, tag, on_device)}
        if len(leased) < len(tensors):
            self._await_registered(to, tag, len(tensors))
        return tuple(leased.get(id(tensor)) or self._reference(to, tag, tensor) for tensor in tensors)

    def _lease_on_device(
        self, to: Sequence[int], tag: int, tensors: Sequence[Tensor]
    ) -> Sequence[DeviceBuffer]:
        if not tensors or not self.device:
            return ()
        use = (tag, tuple(to))
        if self.device.readers(to):
            _, total = laid([tensor.nbytes for tensor in tensors])
            self._await_block(self.device.arena, use, total)
        leased = self.device.lease(to, use, tensors)
        self.device.finish()
        return leased

    def _reference(self, to: Sequence[int], tag: int, tensor: Tensor) -> BufferRef:
        block = self.registered[tensor.untyped_storage().data_ptr()]
        offset = tensor.data_ptr() - block.memory.address
        if any(receiver != self._job_rank for receiver in to):
            self._sent.add(block, offset, offset + tensor.nbytes)
        self.arena.share(block, ((receiver, tag) for receiver in to))
        return BufferRef(block, offset, tensor.nbytes)

    def _own_out_of_band(self, tag: int, one: BufferRef | DeviceBuffer) -> Tensor:
        if isinstance(one, BufferRef):
            return self._own_view(one.block, one.offset, one.nbytes, (self._job_rank, tag))
        assert self.device
        return self.device.own_view(one)

    def _own_view(self, block: Block, offset: int, nbytes: int, holder: Hashable) -> Tensor:
        return block.memory.view(offset, nbytes, partial(self.arena.give_back, block.number, holder))

    # Waiting

    def _await_block(self, arena: Arena, use: tuple[Any, ...], nbytes: int) -> None:
        """Waits a little for a block that may be about to come back, as fresh memory is many times slower.
        Raises `BuffersHeld`."""
        if arena.has(use, nbytes) or self._data_plane.is_forced:
            return
        (tag, to), count = use, arena.count(use)
        are_enough = count > self._data_plane.slots(tag)
        is_free = partial(arena.has, use, 0 if are_enough else nbytes)  # one that is too small is replaced
        if not self._wait(is_free, to, tag, RETURN_WAIT_S * are_enough) and count >= self._max_frames(tag):
            raise self._held(to, count)

    def _await_registered(self, to: Sequence[int], tag: int, count: int) -> None:
        """Waits a little until no receiver holds too many registered buffers. Raises `BuffersHeld`."""
        self._max_out_of_band[tag] = max(self._max_out_of_band[tag], count)
        allowed = self._max_frames(tag) * self._max_out_of_band[tag]
        for receiver in () if self._data_plane.is_forced else to:
            if not self._wait(partial(self._has_room, receiver, tag, allowed), to, tag, RETURN_WAIT_S):
                raise self._held([receiver], allowed)

    def _has_room(self, receiver: int, tag: int, allowed: int) -> bool:
        return self.arena.held([*self.registered.values()], (receiver, tag)) < allowed

    def _wait(self, ready: Callable[[], bool], to: Sequence[int], tag: int, seconds: float) -> bool:
        """Handles messages until `ready` returns true, and returns whether it does. A message that has come
        in time counts, however late this process reads it. Raises `PeerLost` for a lost receiver."""
        until, is_over = time.monotonic() + seconds, False
        while not ready():
            if is_over:
                return False
            has_come = self._data_plane.poll(max(0.0, until - time.monotonic()))
            for receiver in to:
                self._data_plane.check(receiver, tag)
            is_over = not has_come and time.monotonic() >= until
        return True

    def _max_frames(self, tag: int) -> int:
        """Returns how many frames of a tag a receiver may hold before it gets another one."""
        return self._data_plane.slots(tag) + MAX_HELD

    def _held(self, to: Sequence[int], count: int) -> BuffersHeld:
        names = " or ".join(map(self._data_plane.name_of, to))
        return BuffersHeld(f"{names} still holds {count} of the frames that were leased to it")

    def _on_dropped(self, block: Block) -> None:
        self.registered.pop(block.memory.address, None)
        self._sent.forget(block)
        self._drop(block)


# Writes into sent memory


class SentMemory:
    """The memory of `alloc` that was sent to other processes and has not been allocated again since.

    Memory that an endpoint has returned belongs to its consumers, which read it in place. An endpoint that
    fills the same memory again in the next step changes the batch of the last one while they may read it. So
    a few of the bytes that are sent are kept, and compared when bytes around them are sent again. With
    digests, each send compares all bytes that were sent before.
    """

    def __init__(self, *, has_digests: bool) -> None:
        self._has_digests = has_digests
        self._digest = _whole_digest if has_digests else _samples
        self._sent: defaultdict[Block, dict[Range, object]] = defaultdict(dict)
        """Block -> the ranges that were sent of it, each with its samples or its digest."""

    def forget(self, block: Block) -> None:
        """Forgets a block that is allocated again or released."""
        self._sent.pop(block, None)

    def add(self, block: Block, start: int, stop: int) -> None:
        """Records that bytes of a block are sent. Raises `SentMemoryWritten` if some of them were sent
        before and have been written since."""
        ranges = self._sent[block]
        for sent in ranges:
            if sent[0] < stop and start < sent[1]:
                self._compare(block, sent)
        if (start, stop) not in ranges:
            ranges[start, stop] = self._digest(block, start, stop)

    def compare(self) -> None:
        """Compares the digests of all bytes that were sent. Raises `SentMemoryWritten`."""
        if self._has_digests:
            for block, ranges in self._sent.items():
                for sent in ranges:
                    self._compare(block, sent)

    def _compare(self, block: Block, sent: Range) -> None:
        if self._digest(block, *sent) != self._sent[block][sent]:
            raise SentMemoryWritten(MESSAGE)


def _samples(block: Block, start: int, stop: int) -> object:
    """Returns samples of some bytes, the first and the last ones among them."""
    last = max(start, stop - SAMPLE_BYTES)
    address, nbytes = block.memory.address, min(SAMPLE_BYTES, stop - start)
    places = [start + (last - start) * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [ctypes.string_at(address + place, nbytes) for place in places]


def _whole_digest(block: Block, start: int, stop: int) -> object:
    return zlib.crc32(block.memory.view(start, stop - start).numpy().data)
