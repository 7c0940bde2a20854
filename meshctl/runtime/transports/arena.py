"""Memory that processes of one node share: written once by whoever makes a frame, read where it lies by all who get it.

A `Block` is one memfd: it has no name, so nothing is left of it after any death. Fresh memory is many times slower than memory that was
touched before, so blocks are used again: an `Arena` keeps those that are free by what they are used for, and makes a new one only while
all others are held. Who reads a block maps it read-only, so that no replica can change what another one sees.
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

import numpy
import torch
from torch import Tensor

GRAIN = 1 << 16
"""Blocks are whole numbers of these; pages that nobody touched take no memory."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(ValueError):
    """Memory that is not what it was said to be."""


@dataclass(eq=False)
class Block:
    """One piece of shared memory of this process's making."""

    number: int
    file: int
    memory: Mapped
    use: Hashable
    holders: Counter[int] = field(default_factory=Counter)
    """The places that have not given it back, and how often each of them will."""
    known: set[tuple[int, bool]] = field(default_factory=set)
    """The places that have been given the file, to read and to write."""

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


class Arena:
    """The blocks of one process."""

    def __init__(self, drop: Callable[[Block], None] = lambda block: None) -> None:
        """`drop` is called with a block that is used no more, so that others unmap it."""
        self._blocks: dict[int, Block] = {}
        self._free: defaultdict[Hashable, list[Block]] = defaultdict(list)
        self._returned: deque[tuple[int, int]] = deque()
        self._taking = threading.Lock()
        self._drop = drop
        self._made = 0

    def take(self, use: Hashable, nbytes: int, holders: Iterable[int]) -> Block:
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

    def share(self, block: Block, holders: Iterable[int]) -> None:
        """Lends a block that somebody holds to others, too."""
        with self._taking:
            block.holders.update(holders)

    def held(self, blocks: Iterable[Block], holder: int) -> int:
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

    def give_back(self, number: int, holder: int) -> None:
        """A holder needs a block no more: said on any thread, also by the garbage collector in the middle of a `take`."""
        self._returned.append((number, holder))

    def _settle(self) -> None:
        """What was given back is free; what was never lent to who gives it back is left alone."""
        while self._returned:
            number, holder = self._returned.popleft()
            block = self._blocks.get(number)
            if block is not None and holder in block.holders:
                block.holders.subtract((holder,))
                if not block.holders[holder]:
                    del block.holders[holder]
                if not block.holders:
                    self._free[block.use].append(block)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def close(self) -> None:
        for block in [*self._blocks.values()]:
            self._forget(block)
        self._free.clear()

    def _make(self, use: Hashable, nbytes: int) -> Block:
        size = -(-max(nbytes, 1) // GRAIN) * GRAIN
        file = os.memfd_create("meshctl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        self._made += 1
        block = Block(self._made, file, Mapped(file, size, write=True), use)
        self._blocks[block.number] = block
        return block

    def _forget(self, block: Block) -> None:
        del self._blocks[block.number]
        self._drop(block)
        os.close(block.file)


class Mapped:
    """A block in this process's address space."""

    def __init__(self, file: int, nbytes: int, *, write: bool) -> None:
        """Raises `ArenaError` where the file is smaller, or could become so while it is read."""
        try:
            if not 0 < nbytes <= os.fstat(file).st_size or fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ArenaError(f"memory that is not the {nbytes} bytes it was said to be")
            self._pages = mmap.mmap(file, nbytes, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        except OSError as error:  # no memory at all, or none that can be mapped
            raise ArenaError(f"memory of {nbytes} bytes: {error.strerror}") from None
        self.nbytes = nbytes
        self.address: int = numpy.frombuffer(self._pages, numpy.uint8).ctypes.data
        # by its address: a tensor of a read-only buffer makes torch warn, and the pages themselves refuse to be written
        self._bytes = memoryview((ctypes.c_uint8 * nbytes).from_address(self.address))

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        """uint8 `[nbytes]`. `gone` is called when the last tensor that was derived from it dies, on any thread."""
        if not 0 <= at <= at + nbytes <= self.nbytes:
            raise ArenaError(f"bytes {at} to {at + nbytes} of {self.nbytes}")
        array = numpy.frombuffer(self._bytes, numpy.uint8, nbytes, at)
        weakref.finalize(array, _after, self, gone).atexit = False
        return torch.from_numpy(array)


def _after(mapped: Mapped, gone: Callable[[], None] | None) -> None:
    """What is left to do for a view that died; it kept the pages mapped until here."""
    if gone:
        gone()
