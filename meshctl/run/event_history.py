"""The events of old steps of a worker, folded: sums of neighbouring steps, and a part of those about memory.

    history = EventHistory()
    history.add_step(event); history.add_memory(line); history.add_other(line)
    history.lines()                 # the lines of the folded file, in the order of time

There are at most `MAX_SUMS` sums, of about equally many steps, so that the run can be drawn over time. The
sums of all together are exact.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import asdict, dataclass, field, replace

from meshctl.run.events import TIMES, Event, parsed

MAX_SUMS = 200
"""Maximum number of `steps` events of a worker. Beyond it, neighbours are added up until half as many are
left."""
MAX_MEMORY = 200
"""Maximum number of kept events about memory. Beyond it, every second one is left out."""
MAX_OTHERS = 2000
"""Maximum number of other events that are kept, the newest ones."""
_TIME = re.compile(rb'"time":([0-9.]+)}\s*$')


@dataclass
class StepSums:
    """The sums of the `step` events of one worker."""

    first: int = 0
    count: int = 0
    seconds: float = 0.0
    totals: dict[str, dict[str, float]] = field(
        default_factory=lambda: {name: {} for name in ("stages", "times", "waits", "routes", *TIMES)}
    )
    newest: Event = field(default_factory=lambda: Event("step", step=-1))

    def add(self, event: Event) -> None:
        """Adds a `step` or a `steps` event."""
        value, step = event.value, event.step or 0
        times = value.get("times", dict.fromkeys(value.get("stages", {}), 1))
        if not self.count:
            self.first = value.get("first", step)
        self.count += value.get("count", 1)
        self.seconds += value.get("seconds", 0.0)
        for name, sums in self.totals.items():
            for key, number in (times if name == "times" else value.get(name, {})).items():
                sums[key] = sums.get(key, 0) + number
        if step >= (self.newest.step or 0):
            self.newest = event

    def event(self) -> Event:
        value = {"first": self.first, "count": self.count, "seconds": self.seconds, **self.totals}
        return replace(self.newest, name="steps", value=value)


class EventHistory:
    def __init__(self) -> None:
        self._sums: list[StepSums] = []
        self._count = 0
        """Number of steps."""
        self._memory: list[bytes] = []
        self._others: deque[bytes] = deque(maxlen=MAX_OTHERS)
        self.last = -1
        """The last step."""

    def add_step(self, event: Event) -> None:
        """Adds a `step` or a `steps` event."""
        sums = self._sums
        if event.name == "steps" or self._is_next(event):
            sums.append(StepSums())
        sums[-1].add(event)
        self._count += event.value.get("count", 1)
        self.last = max(self.last, event.step or 0)
        if len(sums) > MAX_SUMS:
            self._thin()

    def add_first_step(self, line: bytes) -> None:
        """Keeps the first step of an attempt as it is."""
        self._others.append(line)
        if event := parsed(line):
            self.last = max(self.last, event.step or 0)

    def _is_next(self, event: Event) -> bool:
        """Returns whether a step begins a further sum: the last one is large enough, or the steps run
        again."""
        if not self._sums:
            return True
        last = self._sums[-1]
        return last.count >= 2 * self._count // MAX_SUMS or (event.step or 0) <= (last.newest.step or 0)

    def _thin(self) -> None:
        """Adds up neighbours that have few steps together. At most half of the sums are left."""
        most, kept = -(-4 * self._count // MAX_SUMS), self._sums[:1]
        for one in self._sums[1:]:
            if kept[-1].count + one.count <= most:
                kept[-1].add(one.event())
                kept[-1].newest = one.newest
            else:
                kept.append(one)
        self._sums = kept

    def add_memory(self, line: bytes) -> None:
        self._memory.append(line)
        if len(self._memory) > MAX_MEMORY:
            self._memory = self._memory[::-2][::-1]

    def add_other(self, line: bytes) -> None:
        self._others.append(line)

    def lines(self) -> list[bytes]:
        """Returns the lines of all events, in the order of time."""
        steps = (sums.event() for sums in self._sums)
        texts = (json.dumps(asdict(event), separators=(",", ":")).encode() + b"\n" for event in steps)
        return sorted([*self._others, *self._memory, *texts], key=_time_of)


def _time_of(line: bytes) -> float:
    found = _TIME.search(line)
    return float(found[1]) if found else 0.0
