"""Finds producers that write into memory of `alloc` while their consumers read it.

Memory that an endpoint has returned belongs to its consumers, which read it in place. An endpoint that fills
the same memory again in the next step changes the batch of the last one while they may read it. So a few of
the bytes that are sent are kept, and compared when bytes around them are sent again. With digests, each send
compares all bytes that were sent before.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import defaultdict

from meshctl.runtime.transports.buffers.arena import Block
from meshctl.runtime.transports.errors import SentMemoryWritten

SAMPLES, SAMPLE_BYTES = 8, 32
"""The number of samples that are kept of a range of bytes, and the size of each."""
MESSAGE = (
    "memory of `self.alloc` was written after it had been returned, while its consumers may read it: call "
    "`self.alloc` for every value that is returned"
)

Range = tuple[int, int]
"""The first byte in a block, and the one after the last."""


class SentMemory:
    """The memory of `alloc` that was sent to other processes and has not been allocated again since."""

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
