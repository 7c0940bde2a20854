"""The memory of a worker, reported as `memory` events at ends of steps.

The first steps are reported about once a second, and those of a long run every half minute, so that a
step costs nothing on average and a run of days has few of these events.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch

from meshctl.run.events import EventLog

LEAST_S, MOST_S = 1.0, 30.0
PART = 0.01
"""The time between two events, as a part of the time since the first one."""
PAGE_BYTES = resource.getpagesize()
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryUse:
    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._begun = self._next = perf_counter()

    def report(self, step: int, now: float) -> None:
        """Writes an event if it is time for one. `now` are seconds of `perf_counter`."""
        if now < self._next:
            return
        self._next = now + min(MOST_S, max(LEAST_S, PART * (now - self._begun)))
        self._events.write("memory", step=step, **memory())


def memory() -> dict[str, Any]:
    """Returns the bytes of this process in main memory, now and at most, and with CUDA those that torch has
    reserved on its devices."""
    found: dict[str, Any] = {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT}
    with suppress(OSError):  # no Linux
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found["resident"] = int(os.read(file, 128).split()[1]) * PAGE_BYTES
        finally:
            os.close(file)
        found["peak"] = max(found.values())  # the kernel's counters are not of the same moment
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = range(torch.cuda.device_count())
        found["device"] = sum(map(torch.cuda.memory_reserved, devices))
        found["device_peak"] = sum(map(torch.cuda.max_memory_reserved, devices))
    return found
