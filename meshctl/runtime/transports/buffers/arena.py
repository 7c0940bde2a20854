"""Memory that processes of one node share: the producer of a frame writes it once, all consumers read it in
place.

A `Block` is one piece: a memfd or memory of a device (`devices`). A memfd has no name, so nothing is left of
it when its processes die. Fresh memory is many times slower than warm memory, so blocks are used again: an
`Arena` keeps free blocks by their use, which is any key, and makes a new block only where none is free.
Readers map a memfd read-only, so no replica can change what another one sees.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import field
from typing import Protocol

import numpy
import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.transports.buffers import libc

GRAIN = 1 << 16
"""Bytes; sizes of blocks are multiples of it. Pages that nobody touches take no memory."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(ValueError):
    """Memory cannot be had, or is not what a peer declared."""


class Piece(Protocol):
    """Memory that several processes reach."""

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def file(self) -> int:
        """The file that another process maps; -1 where `handle` identifies the memory."""

    @property
    def handle(self) -> bytes:
        """The bytes with which another process of this node opens the memory; empty if it has a file."""

    @property
    def outlasts(self) -> bool:
        """True if the memory must last until all processes that opened it have closed it."""

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        """Returns uint8 `[nbytes]`. `gone` is called when the last tensor derived from it dies, on any thread
        and at any moment."""

    def close(self) -> None:
        """Releases the memory."""


@dataclass(eq=False)
class Block:
    """One piece of shared memory that this process has made."""

    number: int
    memory: Piece
    use: Hashable
    holders: dict[Hashable, int] = field(default_factory=dict)
    """Holder (a job rank, or a job rank with a tag) -> how many times it still has to return the block."""
    known: set[tuple[int, bool]] = field(default_factory=set)
    """(Job rank, whether it may write): the peers that have received the file or handle."""

    def add(self, holders: Iterable[Hashable]) -> None:
        """Adds a return of the block by each of some holders."""
        for holder in holders:
            self.holders[holder] = self.holders.get(holder, 0) + 1

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    @property
    def file(self) -> int:
        return self.memory.file


class Arena:
    """The blocks that one process has made. Any thread may call its methods."""

    def __init__(
        self, drop: Callable[[Block], None] = lambda block: None, make: Callable[[int], Piece] | None = None
    ) -> None:
        """`drop` is called with a block that is not used any more, and has its peers unmap it. Where the
        block's memory `outlasts`, each peer confirms that by one more `give_back`. `make` returns memory of
        at least the given number of bytes."""
        self.make = make or Sealed
        self.blocks: dict[int, Block] = {}
        self.dropped: dict[int, Block] = {}
        """Blocks that a peer still has open, and that must not be freed before."""
        self._free: defaultdict[Hashable, list[Block]] = defaultdict(list)
        self._returned: deque[tuple[int, Hashable]] = deque()
        self._lock = threading.Lock()
        self._drop = drop
        self._last_number = 0

    def take(self, use: Hashable, nbytes: int, holders: Iterable[Hashable]) -> Block:
        """Returns the free block of at least `nbytes` that was used last; makes one where none is free. It is
        free again when each of the `holders` has returned it as many times as it is listed."""
        with self._lock:
            self._settle()
            free = self._free[use]
            block = next((one for one in reversed(free) if one.nbytes >= nbytes), None)
            if block is not None:
                free.remove(block)
            else:
                if free:
                    self._discard(free.pop())  # a larger one replaces it
                block = self._make(use, nbytes + nbytes // 4)
            block.add(holders)
            return block

    def share(self, block: Block, holders: Iterable[Hashable]) -> None:
        """Adds holders to a block that is held."""
        with self._lock:
            block.add(holders)

    def held(self, blocks: Iterable[Block], holder: Hashable) -> int:
        """Returns how many times in all a holder still has to return these blocks."""
        with self._lock:
            self._settle()
            return sum(block.holders.get(holder, 0) for block in blocks)

    def has(self, use: Hashable, nbytes: int) -> bool:
        """Returns whether a block of at least `nbytes` is free."""
        with self._lock:
            self._settle()
            return any(block.nbytes >= nbytes for block in self._free[use])

    def count(self, use: Hashable) -> int:
        """Returns the number of blocks of one use."""
        return sum(block.use == use for block in [*self.blocks.values()])

    def give_back(self, number: int, holder: Hashable) -> None:
        """Records that a holder returns a block. It takes no lock, because the garbage collector may call it
        in the middle of a `take`."""
        self._returned.append((number, holder))

    def forget_holders(self, job_ranks: Collection[int]) -> None:
        """Takes back the blocks of peers whose processes have been replaced."""
        with self._lock:
            self._settle()
            for block in (*self.blocks.values(), *self.dropped.values()):
                block.known = {(peer, write) for peer, write in block.known if peer not in job_ranks}
            for number in [number for number, block in self.dropped.items() if not block.known]:
                self.dropped.pop(number).memory.close()
            for block in self.blocks.values():
                gone = [holder for holder in block.holders if _job_rank_of(holder) in job_ranks]
                for holder in gone:
                    del block.holders[holder]
                if gone and not block.holders:
                    self._free[block.use].append(block)

    def close(self) -> None:
        """Drops all blocks. Memory that `outlasts` and that a peer still has open is freed when this process
        ends."""
        with self._lock:
            self._settle()
            for block in [*self.blocks.values()]:
                self._discard(block)
            self._free.clear()

    def _settle(self) -> None:
        """Applies the calls of `give_back`: a block is free when it has no holder left. A return by a process
        that does not hold the block is ignored."""
        while self._returned:
            number, holder = self._returned.popleft()
            block = self.blocks.get(number)
            if block is None:
                self._on_closed(number, holder)
            elif times := block.holders.pop(holder, 0):
                if times > 1:
                    block.holders[holder] = times - 1
                elif not block.holders:
                    self._free[block.use].append(block)

    def _on_closed(self, number: int, peer: Hashable) -> None:
        """Records that a peer has unmapped a dropped block. The memory is freed after the last one."""
        block = self.dropped.get(number)
        if block is not None:
            block.known = {(other, write) for other, write in block.known if other != peer}
            if not block.known:
                self.dropped.pop(number).memory.close()

    def _make(self, use: Hashable, nbytes: int) -> Block:
        piece = self.make(-(-max(nbytes, 1) // GRAIN) * GRAIN)
        self._last_number += 1
        block = Block(self._last_number, piece, use)
        self.blocks[block.number] = block
        return block

    def _discard(self, block: Block) -> None:
        del self.blocks[block.number]
        self._drop(block)
        if block.memory.outlasts and block.known:
            self.dropped[block.number] = block
        else:
            block.memory.close()


def _job_rank_of(holder: Hashable) -> Hashable:
    """Returns the job rank of a holder, which is a job rank or (job rank, tag)."""
    return holder[0] if isinstance(holder, tuple) else holder


class Pages:
    """Pages of a file, mapped until this object dies. Python's `mmap` would keep a descriptor open for
    each."""

    def __init__(self, file: int, nbytes: int, *, write: bool) -> None:
        """Raises `OSError`."""
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        self.address = libc.mapped(libc.mmap(None, nbytes, prot, mmap.MAP_SHARED, file, 0))
        weakref.finalize(self, libc.munmap, self.address, nbytes).atexit = False


class Mapped:
    """Shared memory that is mapped into this process."""

    def __init__(self, file: int, nbytes: int, *, write: bool) -> None:
        """Maps a file. Raises `ArenaError` if it has fewer than `nbytes` bytes or could shrink while it is
        read."""
        try:
            if (
                not 0 < nbytes <= os.fstat(file).st_size
                or fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS
            ):
                raise ArenaError(f"memory that is not the {nbytes} bytes it was said to be")
            self.pages = Pages(file, nbytes, write=write)
        except OSError as error:  # no memory at all, or none that can be mapped
            raise ArenaError(f"memory of {nbytes} bytes: {error.strerror}") from None
        self.nbytes, self.write, self.address = nbytes, write, self.pages.address
        # a tensor of a read-only buffer makes torch warn, and the pages themselves refuse to be written
        array = (ctypes.c_uint8 * nbytes).from_address(self.address)
        array.pages = self.pages  # type: ignore[attr-defined]  # mapped as long as a view refers to the array
        self._bytes = memoryview(array)

    def contains(self, address: int, nbytes: int) -> bool:
        return self.address <= address and address + nbytes <= self.address + self.nbytes

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        """Returns uint8 `[nbytes]`. `gone` is called when the last tensor derived from it dies, on any
        thread."""
        if not 0 <= at <= at + nbytes <= self.nbytes:
            raise ArenaError(f"bytes {at} to {at + nbytes} of {self.nbytes}")
        array = numpy.frombuffer(self._bytes, numpy.uint8, nbytes, at)
        if gone:
            weakref.finalize(array, gone).atexit = False
        return torch.from_numpy(array)


class Sealed(Mapped):
    """A memfd that this process makes. Other processes that have mapped it keep it after `close`."""

    handle = b""
    outlasts = False

    def __init__(self, nbytes: int) -> None:
        """Raises `ArenaError` if there is no memory, or no descriptor."""
        try:
            self.file = os.memfd_create("meshctl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ArenaError(f"memory of {nbytes} bytes: {error.strerror}") from None
        try:
            os.ftruncate(self.file, nbytes)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
            super().__init__(self.file, nbytes, write=True)
        except ArenaError:
            os.close(self.file)
            raise
        except OSError as error:
            os.close(self.file)
            raise ArenaError(f"memory of {nbytes} bytes: {error.strerror}") from None

    def close(self) -> None:
        os.close(self.file)
