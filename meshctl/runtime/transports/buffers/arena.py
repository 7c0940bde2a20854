"""Memory that processes of one node share: written once by whoever makes a frame, read where it lies by all
who get it.

A `Block` is one piece: a memfd, which has no name, so that nothing is left of it after any death; or memory
of a device (`devices`). Fresh memory is many times slower than memory that was touched before, so blocks are
used again: an `Arena` keeps those that are free by what they are used for, and makes a new one only while all
others are held. Who reads a memfd maps it read-only, so that no replica can change what another one sees.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy
import torch
from torch import Tensor

from meshctl.runtime.transports.buffers import libc

GRAIN = 1 << 16
"""Blocks are whole numbers of these; pages that nobody touched take no memory."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(ValueError):
    """Memory that is not what it was said to be."""


class Piece(Protocol):
    """Memory that several processes reach."""

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def file(self) -> int:
        """To pass to who maps it; -1 where `handle` says what it is."""

    @property
    def handle(self) -> bytes:
        """By which another process of this node opens it; empty where it has a file."""

    @property
    def outlasts(self) -> bool:
        """Whether it must last until all who opened it have closed it."""

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        """uint8 `[nbytes]`. `gone` is called when the last tensor that was derived from it dies, on any
        thread and in any moment."""

    def close(self) -> None:
        """Gives it up."""


@dataclass(eq=False)
class Block:
    """One piece of shared memory of this process's making."""

    number: int
    memory: Piece
    use: Hashable
    holders: Counter[Hashable] = field(default_factory=Counter)
    """Those who have not given it back, and how often each of them will."""
    known: set[tuple[int, bool]] = field(default_factory=set)
    """The places that have been given the file or the handle, to read and to write."""

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    @property
    def file(self) -> int:
        return self.memory.file


class Arena:
    """The blocks of one process."""

    def __init__(
        self, drop: Callable[[Block], None] = lambda block: None, make: Callable[[int], Piece] | None = None
    ) -> None:
        """`drop` is called with a block that is used no more, so that others unmap it; where its memory
        `outlasts` that, they give it back once more when they have. `make` gives memory of at least so many
        bytes."""
        self._blocks: dict[int, Block] = {}
        self._dropped: dict[int, Block] = {}
        """What others still have open, and must not be freed before."""
        self._free: defaultdict[Hashable, list[Block]] = defaultdict(list)
        self._returned: deque[tuple[int, Hashable]] = deque()
        self._taking = threading.Lock()
        self._drop, self._memory = drop, make or Sealed
        self._made = 0

    def take(self, use: Hashable, nbytes: int, holders: Iterable[Hashable]) -> Block:
        """A free block of at least that many bytes, the one that was used last; a new one where none is free."""
        with self._taking:
            self._settle()
            free = self._free[use]
            block = next((block for block in reversed(free) if block.nbytes >= nbytes), None)
            if block is not None:
                free.remove(block)
            else:
                if free:
                    self._forget(free.pop())  # a larger one takes its place
                block = self._make(use, nbytes + nbytes // 4)
            block.holders = Counter(holders)
            return block

    def share(self, block: Block, holders: Iterable[Hashable]) -> None:
        """Lends a block that somebody holds to others, too."""
        with self._taking:
            block.holders.update(holders)

    def held(self, blocks: Iterable[Block], holder: Hashable) -> int:
        """How often a holder still has to give one of these back."""
        with self._taking:
            self._settle()
            return sum(block.holders.get(holder, 0) for block in blocks)

    def has(self, use: Hashable, nbytes: int) -> bool:
        """Whether a block is free."""
        with self._taking:
            self._settle()
            return any(block.nbytes >= nbytes for block in self._free[use])

    def count(self, use: Hashable) -> int:
        """How many blocks of one use there are."""
        return sum(block.use == use for block in [*self._blocks.values()])

    def give_back(self, number: int, holder: Hashable) -> None:
        """A holder needs a block no more: said on any thread, also by the garbage collector in the middle of
        a `take`."""
        self._returned.append((number, holder))

    def _settle(self) -> None:
        """What was given back is free; what was never lent to who gives it back is left alone."""
        while self._returned:
            number, holder = self._returned.popleft()
            block = self._blocks.get(number)
            if block is None:
                self._closed(number, holder)
            elif holder in block.holders:
                block.holders.subtract((holder,))
                if not block.holders[holder]:
                    del block.holders[holder]
                if not block.holders:
                    self._free[block.use].append(block)

    def _closed(self, number: int, place: Hashable) -> None:
        """A place has unmapped a block that was dropped."""
        block = self._dropped.get(number)
        if block is not None:
            block.known = {(other, write) for other, write in block.known if other != place}
            if not block.known:
                self._dropped.pop(number).memory.close()

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in (*self._blocks.values(), *self._dropped.values()))

    def close(self) -> None:
        """What others still have open, and outlasts them, is left to the end of the process."""
        with self._taking:
            self._settle()
            for block in [*self._blocks.values()]:
                self._forget(block)
            self._free.clear()

    def _make(self, use: Hashable, nbytes: int) -> Block:
        piece = self._memory(-(-max(nbytes, 1) // GRAIN) * GRAIN)
        self._made += 1
        block = Block(self._made, piece, use)
        self._blocks[block.number] = block
        return block

    def _forget(self, block: Block) -> None:
        del self._blocks[block.number]
        self._drop(block)
        if block.memory.outlasts and block.known:
            self._dropped[block.number] = block
        else:
            block.memory.close()


class Pages:
    """A file's pages, mapped until this object dies. Python's own `mmap` would keep a descriptor of its own
    open for each."""

    def __init__(self, file: int, nbytes: int, *, write: bool) -> None:
        """Raises `OSError`."""
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        self.address = libc.mapped(libc.mmap(None, nbytes, prot, mmap.MAP_SHARED, file, 0))
        weakref.finalize(self, libc.munmap, self.address, nbytes).atexit = False


class Mapped:
    """A block in this process's address space."""

    def __init__(self, file: int, nbytes: int, *, write: bool) -> None:
        """Raises `ArenaError` where the file is smaller, or could become so while it is read."""
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
        self._bytes = memoryview((ctypes.c_uint8 * nbytes).from_address(self.address))

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        """uint8 `[nbytes]`. `gone` is called when the last tensor that was derived from it dies, on any
        thread."""
        if not 0 <= at <= at + nbytes <= self.nbytes:
            raise ArenaError(f"bytes {at} to {at + nbytes} of {self.nbytes}")
        array = numpy.frombuffer(self._bytes, numpy.uint8, nbytes, at)
        weakref.finalize(array, _after, self, gone).atexit = False
        return torch.from_numpy(array)


def _after(mapped: Mapped, gone: Callable[[], None] | None) -> None:
    """What is left to do for a view that died; it kept the pages mapped until here."""
    if gone:
        gone()


class Sealed(Mapped):
    """A memfd of this process's making; who maps it keeps it, whatever becomes of it here."""

    handle = b""
    outlasts = False

    def __init__(self, nbytes: int) -> None:
        """Raises `ArenaError` where there is no memory, or no descriptor."""
        try:
            self.file = os.memfd_create("meshctl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ArenaError(f"memory of {nbytes} bytes: {error.strerror}") from None
        try:
            os.ftruncate(self.file, nbytes)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
            super().__init__(self.file, nbytes, write=True)
        except (OSError, ArenaError) as error:
            os.close(self.file)
            raise (
                error
                if isinstance(error, ArenaError)
                else ArenaError(f"memory of {nbytes} bytes: {error.strerror}")
            ) from None

    def close(self) -> None:
        os.close(self.file)
