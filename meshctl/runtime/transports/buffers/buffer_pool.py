"""What a worker lends to the others of its node: memory for frames, and tensors that go beside them as they
lie.

    frame       a block of the arena, which all who get it read; small ones need none
    room        a block that an endpoint writes its result to (`alloc`), and that its takers then read
    device      a block of the worker's device (`devices.ondevice`)

Blocks go round. Who keeps what it was lent gets no more of it once it has some frames' worth: it is named.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError, laid
from meshctl.runtime.devices.device_buffers import Lent, OnDevice
from meshctl.runtime.transports.buffers.arena import Arena, ArenaError, Block
from meshctl.runtime.transports.buffers.memcpy import is_mappable, is_plain
from meshctl.runtime.transports.data_plane import Delivery, Held, Loan, Transport

INLINE = 4096
"""Bytes of a frame, and of a tensor, that are as well copied into a message."""
ALLOC = 1 << 16
"""Bytes from which on `alloc` gives memory that others read."""
SOON = 0.25
"""Seconds to wait for a block to come back, where there is one for each slot and one that is read, before
there is another one."""
HELD = 8
"""Blocks that a receiver may hold beside those that are under way to it."""


@dataclass(frozen=True)
class Lying:
    """A tensor in a room."""

    block: Block
    at: int
    nbytes: int


@dataclass(frozen=True)
class Kept:
    """What is known of a loan: its block, where it has one, and what lies beside it."""

    block: Block | None
    beside: tuple[Lying | Lent, ...] = ()


@dataclass(frozen=True)
class _Room:
    """The use of a block that an endpoint writes to."""

    nbytes: int


class Lending:
    def __init__(self, transport: Transport, drop: Callable[[Block], None]) -> None:
        """`drop` tells others of a block that is used no more."""
        self.arena = Arena(self._dropped)
        self.rooms: dict[int, Block] = {}
        """By their addresses."""
        self.device: OnDevice | None = None
        self._transport, self._drop = transport, drop
        self._most: Counter[int] = Counter()
        """By lane, the tensors that went beside one frame."""
        self._closed = False

    def alloc(self, nbytes: int) -> Tensor | None:
        if nbytes < ALLOC or self._closed:
            return None
        size = (
            1 << (nbytes - 1).bit_length()
        )  # so that there are few kinds; pages that nobody touches take no memory
        try:
            block = self.arena.take(_Room(size), size, [self._transport.place])
        except ArenaError:
            return None
        self.rooms[block.memory.address] = block
        return self._own(block, 0, nbytes, self._transport.place)

    def hands_over(self, to: Sequence[int], lent: bool, tensor: Tensor) -> bool:
        if self.device and self.device.hands_over(to, tensor):
            return True
        return lent and tensor.nbytes > INLINE and self._is_in_room(tensor)

    def lies_mappable(self, tensor: Tensor) -> bool:
        return self._is_in_room(tensor) and is_mappable(tensor.data_ptr(), tensor.nbytes, last=True)

    def _is_in_room(self, tensor: Tensor) -> bool:
        return bool(self.rooms) and is_plain(tensor) and tensor.untyped_storage().data_ptr() in self.rooms

    def lend(self, to: Sequence[int], lane: int, nbytes: int, beside: Sequence[Tensor]) -> Loan:
        """Raises `Held`, `Full`, `PeerLost`."""
        try:
            return self._lend(to, lane, nbytes, beside)
        except (ArenaError, DeviceError) as error:
            raise self._transport.full(
                nbytes + sum(tensor.nbytes for tensor in beside), lane, error
            ) from None

    def _lend(self, to: Sequence[int], lane: int, nbytes: int, beside: Sequence[Tensor]) -> Loan:
        lent = self._lent_beside(to, lane, beside) if beside else ()
        if nbytes <= INLINE:
            return Loan(tuple(to), lane, torch.empty(nbytes, dtype=torch.uint8), beside, Kept(None, lent))
        use = (lane, tuple(to))
        self._await_block(self.arena, use, nbytes)
        block = self.arena.take(use, nbytes, to)
        return Loan(tuple(to), lane, block.memory.view(0, nbytes), beside, Kept(block, lent))

    def own(self, loan: Loan) -> Delivery:
        """What this place itself gets of a loan."""
        kept: Kept | None = loan.kept
        if kept is None:
            return Delivery(loan.inline)
        frame = self._own(kept.block, 0, len(loan.frame), self._transport.place) if kept.block else loan.frame
        return Delivery(frame, [self._own_beside(loan.lane, one) for one in kept.beside])

    def close(self) -> None:
        self._closed = True
        self.arena.close()
        if self.device:
            self.device.close()

    def forget(self) -> None:
        """In a forked child: all of it is its parent's."""
        self._closed = True
        self.rooms.clear()

    # Beside frames

    def _lent_beside(
        self, to: Sequence[int], lane: int, tensors: Sequence[Tensor]
    ) -> tuple[Lying | Lent, ...]:
        on_device = [tensor for tensor in tensors if self.device and self.device.hands_over(to, tensor)]
        lent = {id(one.tensor): one for one in self._lent_on_device(to, lane, on_device)}
        if len(lent) < len(tensors):
            self._await_rooms(to, lane, len(tensors))
        return tuple(lent.get(id(tensor)) or self._lying(to, lane, tensor) for tensor in tensors)

    def _lent_on_device(self, to: Sequence[int], lane: int, tensors: Sequence[Tensor]) -> Sequence[Lent]:
        if not tensors or not self.device:
            return ()
        use = (lane, tuple(to))
        if self.device.readers(to):
            _, total = laid([tensor.nbytes for tensor in tensors])
            self._await_block(self.device.arena, use, total)
        lent = self.device.lend(to, use, tensors)
        self.device.finish()
        return lent

    def _lying(self, to: Sequence[int], lane: int, tensor: Tensor) -> Lying:
        block = self.rooms[tensor.untyped_storage().data_ptr()]
        self.arena.share(block, ((place, lane) for place in to))
        return Lying(block, tensor.data_ptr() - block.memory.address, tensor.nbytes)

    def _own_beside(self, lane: int, one: Lying | Lent) -> Tensor:
        if isinstance(one, Lying):
            return self._own(one.block, one.at, one.nbytes, (self._transport.place, lane))
        assert self.device
        return self.device.own(one)

    def _own(self, block: Block, at: int, nbytes: int, holder: Hashable) -> Tensor:
        return block.memory.view(at, nbytes, partial(self.arena.give_back, block.number, holder))

    # Waiting

    def _await_block(self, arena: Arena, use: tuple[Any, ...], nbytes: int) -> None:
        """One may be about to come back, and fresh memory is many times slower. Raises `Held`."""
        if arena.has(use, nbytes):
            return
        lane, to, *_ = use
        count = arena.count(use)
        enough = count > self._transport.slots(lane)
        until = time.monotonic() + (SOON if enough else 0.0)
        while True:
            self._look(to, lane, until)
            if arena.has(use, 0 if enough else nbytes):  # one that is too small is replaced
                return
            if time.monotonic() >= until:
                break
        if count >= self._bound(lane):
            raise self._held(to, count)

    def _await_rooms(self, to: Sequence[int], lane: int, count: int) -> None:
        """Whoever is given tensors beside frames gives them back. Raises `Held`."""
        self._most[lane] = max(self._most[lane], count)
        until = time.monotonic() + SOON
        for place in to:
            while (held := self.arena.held([*self.rooms.values()], (place, lane))) >= self._bound(
                lane
            ) * self._most[lane]:
                if time.monotonic() >= until:
                    raise self._held([place], held)
                self._look(to, lane, until)

    def _look(self, to: Sequence[int], lane: int, until: float) -> None:
        """Hears what has come. Raises `PeerLost`."""
        self._transport.look(max(0.0, until - time.monotonic()))
        for place in to:
            self._transport.check(place, lane)

    def _bound(self, lane: int) -> int:
        """Frames that a receiver may hold beside the one that comes: those that are under way, and a few."""
        return self._transport.slots(lane) + HELD

    def _held(self, to: Sequence[int], count: int) -> Held:
        return Held(
            f"{' or '.join(self._transport.who(place) for place in to)} still holds {count} of what it was lent"
        )

    def _dropped(self, block: Block) -> None:
        self.rooms.pop(block.memory.address, None)
        self._drop(block)
