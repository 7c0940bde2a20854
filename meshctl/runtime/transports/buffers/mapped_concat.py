"""Concatenation without a copy: pages of several processes' memory are mapped one after another.

Every tensor must start at a page and, except for the last, end at one. A mapping costs more than a small copy
and is kept: memory is used again, so the next step's tensors mostly lie where those of an earlier step lay.
"""

from __future__ import annotations

import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from meshctl.runtime.devices.from_address import tensor_at
from meshctl.runtime.transports.buffers import libc
from meshctl.runtime.transports.buffers.arena import Mapped
from meshctl.runtime.transports.buffers.memcpy import is_plain

PAGE = mmap.PAGESIZE
MIN_BYTES = 1 << 19
"""Smallest concatenation in bytes that is worth a mapping; a smaller one is copied in less time."""
MAX_SPANS = 1 << 10
"""The most spans, over all mappings that are kept."""
MAX_TIMES_MAPPED = 2
"""The average number of kept mappings of the same memory, at the most. Tools count each mapping as
memory of this process."""
_NO_ACCESS = 0
_Spans = tuple[tuple[Mapped, int, int], ...]
"""Memory, offset and bytes of each part."""


def fits_pages(offset: int, nbytes: int, is_last: bool) -> bool:
    """Returns whether bytes at an offset (or address) can be a part of a concatenation. They must start at a
    page and, except for the last part, end at one."""
    return nbytes > 0 and not offset % PAGE and (is_last or not nbytes % PAGE)


def starts_page(tensor: Tensor) -> bool:
    """Returns whether a tensor can be the last part of a concatenation."""
    return fits_pages(tensor.data_ptr(), tensor.nbytes, is_last=True)


class PageMapping:
    """Spans of memory mapped one after another, read-only, until this object dies."""

    def __init__(self, spans: _Spans) -> None:
        """Raises `OSError`."""
        sizes = [_whole_pages(nbytes) for _, _, nbytes in spans]
        total = self.nbytes = sum(sizes)
        self.address = libc.mapped(
            libc.mmap(None, total, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        )
        weakref.finalize(self, libc.munmap, self.address, total).atexit = False
        at = self.address
        for (memory, offset, _), size in zip(spans, sizes, strict=True):
            # mremap with an old size of 0 makes a second mapping of shared pages
            libc.mapped(libc.mremap(memory.address + offset, 0, size, libc.MAYMOVE | libc.FIXED, at))
            at += size
        libc.mprotect(self.address, total, mmap.PROT_READ)  # this process may write to its own buffers
        libc.madvise(self.address, total, libc.POPULATE_READ)  # one call instead of a fault per page


class MappedConcat:
    """Concatenates tensors in shared memory; keeps the mappings that were used last."""

    def __init__(self, memory_of: Callable[[int, int], Mapped | None]) -> None:
        """`memory_of` returns the shared memory that holds some bytes at an address."""
        self._memory_of = memory_of
        self._kept: OrderedDict[_Spans, PageMapping] = OrderedDict()

    @property
    def addresses(self) -> list[int]:
        """Addresses of the mappings that are kept."""
        return [mapping.address for mapping in self._kept.values()]

    def contains(self, address: int) -> bool:
        """Returns whether an address is in a mapping that is kept."""
        return any(0 <= address - mapping.address < mapping.nbytes for mapping in self._kept.values())

    def concat(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Returns the tensors as one, along dim 0; None if they cannot be mapped."""
        first = tensors[0]
        total = sum(tensor.nbytes for tensor in tensors)
        if total < MIN_BYTES or not is_plain(first) or first.data_ptr() % PAGE:
            return None
        if not all(map(is_plain, tensors)):
            return None
        if any(tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:] for tensor in tensors):
            return None
        spans = self._spans(tensors)
        mapping = self._mapping(spans) if spans else None
        if mapping is None:
            return None
        flat = tensor_at(mapping.address, total, first.device, (mapping, tensors))
        return flat.view(first.dtype).view(sum(map(len, tensors)), *first.shape[1:])

    def forget(self, memory: Mapped) -> None:
        """Drops the mappings of memory that is released."""
        for spans in [spans for spans in self._kept if any(one is memory for one, _, _ in spans)]:
            del self._kept[spans]

    def clear(self) -> None:
        self._kept.clear()

    def _spans(self, tensors: Sequence[Tensor]) -> _Spans | None:
        found = []
        for number, tensor in enumerate(tensors, 1):
            address, nbytes = tensor.data_ptr(), tensor.nbytes
            if not fits_pages(address, nbytes, number == len(tensors)):
                return None
            memory = self._memory_of(address, nbytes)
            if memory is None:
                return None
            found.append((memory, address - memory.address, nbytes))
        return tuple(found)

    def _mapping(self, spans: _Spans) -> PageMapping | None:
        mapping = self._kept.get(spans)
        if mapping is not None:
            self._kept.move_to_end(spans)
            return mapping
        try:
            mapping = self._kept[spans] = PageMapping(spans)
        except OSError:  # more mappings than a process may have
            return None
        while self._are_too_many():
            self._kept.popitem(last=False)
        return mapping

    def _are_too_many(self) -> bool:
        every = [span for spans in self._kept for span in spans]
        return len(every) > MAX_SPANS or _bytes_of(every) > MAX_TIMES_MAPPED * _bytes_of({*every})


def _bytes_of(spans: Iterable[tuple[Mapped, int, int]]) -> int:
    return sum(nbytes for _, _, nbytes in spans)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
