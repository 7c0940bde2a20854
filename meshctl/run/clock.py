"""The time of events, which is not harmed by a clock that steps.

Events are ordered by their times, and the times in `metrics.jsonl` are differences of them. A process that is
forked from the launcher counts from the same moment as the launcher.

The offset between the clocks of two machines is measured by messages over one connection:

    here     sent ------> there: remote ------> here: received

The remote clock was read somewhere between the two readings here, so half of the time that the message took
bounds the error. Clocks drift, so a reading becomes worse with time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from meshctl.dataclass import dataclass

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""In Linux, this clock goes on while the machine sleeps."""
_clock_gettime = time.clock_gettime
READINGS = 8
DRIFT = 20e-6
"""Seconds in a second by which two clocks may drift apart."""
TICK = 1e-9
"""The resolution of a clock in seconds."""


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


@dataclass(frozen=True)
class Offset:
    """The lead of a remote clock over the clock here, in seconds."""

    value: float
    error: float
    """The greatest error at the time of the reading."""
    at: float
    """The time of the measurement, by the clock here."""

    @classmethod
    def measured(cls, sent: float, remote: float, received: float) -> Offset:
        middle = (sent + received) / 2
        return cls(remote - middle, (received - sent) / 2, middle)

    def error_at(self, time: float) -> float:
        """Returns the greatest error at another time."""
        return self.error + DRIFT * abs(time - self.at)

    @property
    def corrected(self) -> float:
        """The value, or 0 where both clocks may be the same, as on one machine."""
        return 0.0 if abs(self.value) <= self.error + TICK else self.value


def best_at(offsets: Iterable[Offset], time: float) -> Offset | None:
    """Returns the offset with the least error at a time; None if there are none."""
    return min(offsets, key=lambda offset: offset.error_at(time), default=None)
