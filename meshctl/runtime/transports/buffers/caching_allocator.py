"""Warm host memory: fresh pages are many times slower, so the memory of one frame is used for the next
one."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Hashable

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

UNCACHED_MAX = 1 << 16
"""The size in bytes up to which torch's own allocator returns warm memory."""


class CachingAllocator:
    """Keeps the memory of tensors that have died for the next ones of the same `use`.

    A use is any key, here a tag and its job ranks: frames of one use mostly have similar sizes. For each use
    the allocator keeps as many pieces of memory as ever were in use at one time.
    """

    def __init__(self) -> None:
        self._free: defaultdict[Hashable, list[NDArray[numpy.uint8]]] = defaultdict(list)
        self._returned: deque[tuple[Hashable, NDArray[numpy.uint8]]] = deque()
        """Filled by finalizers, which run on any thread at any moment and must not wait for a lock."""
        self._lock = threading.Lock()

    def take(self, use: Hashable, nbytes: int) -> Tensor:
        """Returns uint8 `[nbytes]`, exclusive until the last tensor derived from it dies. From any thread.
        Raises `MemoryError`."""
        if nbytes <= UNCACHED_MAX:
            return torch.empty(nbytes, dtype=torch.uint8)
        with self._lock:
            while self._returned:
                returned_use, memory = self._returned.popleft()
                self._free[returned_use].append(memory)
            free = self._free[use]
            memory = free.pop() if free else numpy.empty(0, numpy.uint8)
            if len(memory) < nbytes:
                memory = numpy.empty(nbytes + nbytes // 4, numpy.uint8)
        view = memory[:nbytes]
        weakref.finalize(view, self._returned.append, (use, memory)).atexit = False
        return torch.from_numpy(view)
