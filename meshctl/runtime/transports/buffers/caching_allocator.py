"""Memory that was touched before: fresh pages are many times slower, so what a frame lay in is used for the
next one of its kind."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Hashable

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

SMALL = 1 << 16
"""Bytes up to which the allocator's own memory is warm enough."""


class Warm:
    """Memory of one process, kept by what it is used for; its size is that of the most frames which ever
    lived at once."""

    def __init__(self) -> None:
        self._free: defaultdict[Hashable, list[NDArray[numpy.uint8]]] = defaultdict(list)
        self._back: deque[tuple[Hashable, NDArray[numpy.uint8]]] = deque()
        """What came back: a view may die on any thread and in any moment, where no lock may be waited for."""
        self._taking = threading.Lock()

    def take(self, use: Hashable, nbytes: int) -> Tensor:
        """uint8 `[nbytes]`, its own until the last tensor that was derived from it dies. From any thread.
        Raises `MemoryError`."""
        if nbytes <= SMALL:
            return torch.empty(nbytes, dtype=torch.uint8)
        with self._taking:
            while self._back:
                kept, memory = self._back.popleft()
                self._free[kept].append(memory)
            free = self._free[use]
            memory = free.pop() if free else numpy.empty(0, numpy.uint8)
            if len(memory) < nbytes:
                memory = numpy.empty(nbytes + nbytes // 4, numpy.uint8)
        view = memory[:nbytes]
        weakref.finalize(view, self._back.append, (use, memory)).atexit = False
        return torch.from_numpy(view)
