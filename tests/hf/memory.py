"""The largest memory that this process allocated. Pages of files that it maps do not count."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path
from threading import Event, Thread
from typing import Self

STATUS = Path("/proc/self/status")
INTERVAL_S = 0.001
LIBC = ctypes.CDLL(None)
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 1 << 18
"""An option of the C library: blocks from this size on are returned to the system when they are freed."""


class AllocatedPeak:
    """A context in which a thread samples the anonymous memory of this process."""

    bytes = 0
    """The largest sample, less the memory at the beginning."""

    def __enter__(self) -> Self:
        gc.collect()
        LIBC.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        LIBC.malloc_trim(0)
        self._begin, self._ended = _anonymous_bytes(), Event()
        self._thread = Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        LIBC.malloc_trim(0)  # returns the smaller blocks that were freed
        self.bytes = max(self.bytes, _anonymous_bytes() - self._begin)


def _anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text())
    assert found
    return int(found[1]) * 1024
