"""Folds the events of old steps, so that the event files of a run are bounded.

    folding = EventFolding(run)
    folding.poll(now, follower)          # folds one segment, if there is one

A segment of a worker's events is folded once newer ones exist, the supervisor has read it, and the rows of
its steps are in `metrics.jsonl`. Its `step` events become `steps` events with their sums, all but the first
one of an attempt, which takes longer than the others. The number of sums is bounded, and large enough that
the run can be drawn over time. Metrics, which are in the rows, and the files of old checkpoints are left out.
A folded file replaces the segments in one rename, so a kill at any moment loses nothing and counts nothing
twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import (
    TIMES,
    Event,
    EventFile,
    Follower,
    delete_folded,
    event_files,
    events_of,
    folded_name,
    line_of,
)
from meshctl.run.metrics import last_row

POLL_S = 1.0
"""Seconds between two searches for segments."""
KEPT_SEGMENTS = 2
"""Number of segments of a worker that are not folded, beside the one that is being written."""
SUM_STEPS, MAX_SUMS = 100, 200
"""Number of steps of a new `steps` event, and maximum number of these events of a worker. Beyond it,
neighbours are added up."""
MAX_MEMORY = 200
"""Maximum number of kept events about memory. Beyond it, every second one is left out."""
MAX_OTHERS = 2000
"""Maximum number of other events that are kept, the newest ones."""
LEFT_OUT = ("metric", "saved", "saving")


class EventFolding:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._next = -math.inf

    def poll(self, now: float, follower: Follower) -> None:
        """Folds the oldest segment of a worker. `follower` is the supervisor's."""
        if now < self._next:
            return
        with suppress(OSError):  # a full disk or a deleted run directory is reported elsewhere
            if self._fold(follower):
                return
        self._next = now + POLL_S

    def _fold(self, follower: Follower) -> bool:
        for who, files in event_files(self._run.events).items():
            segments = [file for file in files if not file.is_folded]
            for segment in segments[: -1 - KEPT_SEGMENTS][:1]:
                old = files[0] if files[0].is_folded else None
                if follower.has_read(who, segment.number) and self._replace(who, old, segment):
                    return True
        return False

    def _replace(self, who: str, old: EventFile | None, segment: EventFile) -> bool:
        """Replaces the folded file of a process and a segment by another folded file, unless the last row of
        the metrics is of an earlier step than the segment's last one."""
        folder, row = self._run.events, last_row(self._run.metrics)
        events, last = folded(events_of(folder / old.name) if old else (), events_of(folder / segment.name))
        if row is None or last > row["step"]:
            return False
        write_whole(folder / folded_name(who, segment.number), b"".join(map(line_of, events)))
        delete_folded(folder, who, segment.number)
        return True


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


def folded(old: Iterable[Event], new: Iterable[Event]) -> tuple[list[Event], int]:
    """Returns the events of a folded file in the order of time, from those of the one before it and those of
    a segment, and the last step of the segment; -1 without one."""
    others, current, last, is_first = list(old), StepSums(), -1, False
    sums = [event for event in others if event.name == "steps"]
    for event in new:
        if event.name not in ("step", "steps") or is_first:
            others += [event] if event.name not in LEFT_OUT else []
        else:
            runs_again = (event.step or 0) <= (current.newest.step or 0)
            if current.count and (runs_again or current.count >= SUM_STEPS):
                sums.append(current.event())
                current = StepSums()
            current.add(event)
        if event.name in ("step", "steps"):
            last, is_first = max(last, event.step or 0), False
        is_first = is_first or event.name == "ready"
    sums += [current.event()] if current.count else []
    memory = [event for event in others if event.name == "memory"]
    kept = memory[::-2] if len(memory) > MAX_MEMORY else memory
    others = [event for event in others if event.name not in ("memory", "steps")][-MAX_OTHERS:]
    return sorted([*others, *kept, *_thinned(sums)], key=lambda event: event.time), last


def _thinned(sums: Sequence[Event]) -> Sequence[Event]:
    """Adds up pairs of neighbours while there are too many sums."""
    while len(sums) > MAX_SUMS:
        pairs = [StepSums() for _ in sums[::2]]
        for place, event in enumerate(sums):
            pairs[place // 2].add(event)
        sums = [pair.event() for pair in pairs]
    return sums
