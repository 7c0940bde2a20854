"""The offset between the clocks of two machines, measured by messages over one connection.

    here     sent ------> there: remote ------> here: received

The remote clock was read somewhere between the two readings here, so half of the time that the message took
bounds the error. Clocks drift, so a reading becomes worse with time.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshctl.dataclass import dataclass

DRIFT = 20e-6
"""Seconds in a second by which two clocks may drift apart."""

TICK = 1e-9
"""The resolution of a clock in seconds."""


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
