"""The time of events, which is not harmed by a clock that steps.

Events are ordered by their times, and the times in `metrics.jsonl` are differences of them. A process that is
forked from the launcher counts from the same moment as the launcher.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""In Linux, this clock goes on while the machine sleeps."""
_clock_gettime = time.clock_gettime
READINGS = 8


def _begin() -> float:
    """Returns the time at which the clock showed 0. Of several readings, the one that took the shortest time
    counts: between two clocks, this process may wait for a processor."""
    found = []
    for _ in range(READINGS):
        before, epoch, after = _clock_gettime(_CLOCK), time.time(), _clock_gettime(_CLOCK)
        found.append((after - before, epoch - (before + after) / 2))
    return min(found)[1]


_BEGIN = _begin()


def now() -> float:
    """Returns the seconds since the epoch by the clock of this process when it started, and the seconds that
    have passed since then."""
    return _BEGIN + _clock_gettime(_CLOCK)
