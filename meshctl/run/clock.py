"""The time of events, which is not harmed by a clock that steps.

Events are ordered by their times, and the times in `metrics.jsonl` are differences of them. A process that is
forked from the launcher counts from the same moment as the launcher.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""In Linux, this clock goes on while the machine sleeps."""
_clock_gettime = time.clock_gettime
_BEGIN = time.time() - _clock_gettime(_CLOCK)


def now() -> float:
    """Returns the seconds since the epoch by the clock of this process when it started, and the seconds that
    have passed since then."""
    return _BEGIN + _clock_gettime(_CLOCK)
