"""Tensors of several processes' memory as one: their pages are mapped one after another, and nothing is
copied.

That takes tensors which begin at a page and, but for the last, end with one. Mapping costs more than small
copies and is kept, since memory goes round: the next step's tensors mostly lie where those of some step
before lay.
"""

from __future__ import annotations

import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from meshctl.runtime.devices.from_address import over
from meshctl.runtime.transports.buffers import libc
from meshctl.runtime.transports.buffers.arena import Mapped
from meshctl.runtime.transports.buffers.memcpy import PAGE, is_mappable, is_plain

LEAST = 1 << 16
"""Bytes from which mapping is worth it."""
MOST = 1 << 10
"""Mappings that are kept."""
TIMES = 2
"""How often the memory that is kept may be mapped: each time counts as this process's, for who looks at what
it has."""
_NO_ACCESS = 0
_Spans = tuple[tuple[Mapped, int, int], ...]
"""Memory, its first byte, and how many."""


class Strip:
    """Mapped until this object dies."""

    def __init__(self, spans: _Spans) -> None:
        """Raises `OSError`."""
        sizes = [_whole_pages(nbytes) for _, _, nbytes in spans]
        total = sum(sizes)
        self.address = libc.mapped(
            libc.mmap(None, total, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        )
        weakref.finalize(self, libc.munmap, self.address, total).atexit = False
        at = self.address
        for (memory, begin, _), size in zip(spans, sizes, strict=True):
            # of pages that are shared, and of an old size of 0, mremap makes a second mapping
            libc.mapped(libc.mremap(memory.address + begin, 0, size, libc.MAYMOVE | libc.FIXED, at))
            at += size
        libc.mprotect(
            self.address, total, mmap.PROT_READ
        )  # what lies in rooms of this process could be written
        libc.madvise(self.address, total, libc.POPULATE_READ)  # one call for all the faults that would come


class Strips:
    """Those that were made lately."""

    def __init__(self, memory_of: Callable[[int, int], Mapped | None]) -> None:
        """`memory_of` gives the shared memory in which so many bytes at an address lie."""
        self._memory_of = memory_of
        self._kept: OrderedDict[_Spans, Strip] = OrderedDict()

    def joined(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The tensors along dim 0, of one dtype and row; none where they cannot be mapped."""
        first = tensors[0]
        if sum(tensor.nbytes for tensor in tensors) < LEAST or not all(map(is_plain, tensors)):
            return None
        if any(tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:] for tensor in tensors):
            return None
        spans = self._spans(tensors)
        strip = self._strip(spans) if spans else None
        if strip is None:
            return None
        flat = over(strip.address, sum(tensor.nbytes for tensor in tensors), first.device, (strip, tensors))
        return flat.view(first.dtype).view(sum(map(len, tensors)), *first.shape[1:])

    def forget(self, memory: Mapped) -> None:
        """Of memory that is given up."""
        for spans in [spans for spans in self._kept if any(one is memory for one, _, _ in spans)]:
            del self._kept[spans]

    def clear(self) -> None:
        self._kept.clear()

    def _spans(self, tensors: Sequence[Tensor]) -> _Spans | None:
        found = []
        for number, tensor in enumerate(tensors, 1):
            address, nbytes = tensor.data_ptr(), tensor.nbytes
            memory = (
                self._memory_of(address, nbytes)
                if is_mappable(address, nbytes, number == len(tensors))
                else None
            )
            if memory is None:
                return None
            found.append((memory, address - memory.address, nbytes))
        return tuple(found)

    def _strip(self, spans: _Spans) -> Strip | None:
        strip = self._kept.get(spans)
        if strip is None:
            try:
                strip = self._kept[spans] = Strip(spans)
            except OSError:  # more mappings than a process may have
                return None
            while self._are_many():
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(spans)
        return strip

    def _are_many(self) -> bool:
        every = [span for spans in self._kept for span in spans]
        return len(every) > MOST or _bytes_of(every) > TIMES * _bytes_of({*every})


def _bytes_of(spans: Iterable[tuple[Mapped, int, int]]) -> int:
    return sum(nbytes for _, _, nbytes in spans)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
