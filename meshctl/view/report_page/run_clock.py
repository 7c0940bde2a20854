"""The time axis of a run: its seconds, without the time between two launches.

A run may be continued days after it has failed. These days are no part of its axis.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from meshctl.run.events import Event


class RunClock:
    def __init__(self, launched: Sequence[float], times: Iterable[float]) -> None:
        """`launched` are the times of the launches, and `times` the times of all events, in seconds since the
        epoch."""
        self._begins = sorted(launched)
        self._ends = list(self._begins)
        for time in times:
            if (number := bisect_right(self._begins, time) - 1) >= 0:
                self._ends[number] = max(self._ends[number], time)
        self._before = [0.0]
        for begin, end in zip(self._begins, self._ends, strict=True):
            self._before.append(self._before[-1] + end - begin)

    @property
    def seconds(self) -> float:
        """The length of the axis."""
        return self._before[-1]

    @property
    def seams(self) -> list[float]:
        """The seconds at which the run was continued by a further launch."""
        return self._before[1:-1]

    def at(self, time: float) -> float:
        """Returns the second of the run for a time since the epoch."""
        number = bisect_right(self._begins, time) - 1
        if number < 0:
            return 0.0
        return self._before[number] + min(time, self._ends[number]) - self._begins[number]


def launches_of(events: Iterable[Event]) -> list[float]:
    """Returns the times of the launches among the launcher's events. A restart after a failure is none."""
    found, is_restart = list[float](), False
    for event in events:
        if event.name == "launched" and not is_restart:
            found.append(event.time)
        if event.name in ("launched", "restarted") and "group" not in event.value:
            is_restart = event.name == "restarted"
    return found
