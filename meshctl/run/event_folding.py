"""Folds the events of old steps, so that the event files of a run are bounded.

    folding = EventFolding(run)
    folding.poll(now, follower)          # a few milliseconds each time

A segment of a worker's events is folded once newer ones exist, the supervisor has read it, and the rows of
its steps are in `metrics.jsonl`. Its `step` events become parts of a few `steps` events with their sums, all
but the first one of an attempt, which takes longer than the others.
Metrics, which are in the rows, and the files of old checkpoints are left out. A folded file replaces the
segments in one rename, so a kill at any moment loses nothing and counts nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.event_files import EventFiles, delete_folded, event_files, folded_name, segment_name
from meshctl.run.event_history import EventHistory
from meshctl.run.events import Follower, parsed
from meshctl.run.reading import lines_of
from meshctl.run.row_file import last_row

POLL_S = 1.0
"""Seconds between two searches for segments."""
KEPT_SEGMENTS = 2
"""Number of segments of a worker that are not folded, beside the one that is being written."""
LINES_PER_POLL = 1500
_FOLDED = (b'{"name":"step"', b'{"name":"steps"')
_MEMORY, _STEP, _READY = b'{"name":"memory"', b'{"name":"step"', b'{"name":"ready"'
_LEFT_OUT = (b'{"name":"metric"', b'{"name":"saved"', b'{"name":"saving"')


class EventFolding:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._next = -math.inf
        self._running: Iterator[None] | None = None
        self._waiting: dict[str, int] = {}
        """Process -> the last step of its oldest segment, which had no row yet."""

    def poll(self, now: float, follower: Follower) -> None:
        """Folds a part of what there is to fold. `follower` is the supervisor's."""
        if self._running is None and now >= self._next:
            self._next = now + POLL_S
            self._running = self._fold(follower)
        if self._running is not None:
            try:
                next(self._running)
            except (StopIteration, OSError):  # a full disk or a deleted run directory is reported elsewhere
                self._running = None

    def _fold(self, follower: Follower) -> Iterator[None]:
        row = last_row(self._run.metrics)
        covered = row["step"] if row else -1
        for process in event_files(self._run.events):
            for number in process.segments[: -1 - KEPT_SEGMENTS]:
                has_rows = self._waiting.get(process.who, -1) <= covered
                if not has_rows or not follower.has_read(process.who, number):
                    break
                history = EventHistory()
                yield from self._add_lines(process, number, history)
                if history.last > covered:
                    self._waiting[process.who] = history.last
                    break
                self._write(process.who, number, history)
                process = replace(process, folded=number)

    def _add_lines(self, process: EventFiles, number: int, history: EventHistory) -> Iterator[None]:
        """Adds the lines of a process's folded file and of a segment. Yields after each part of them."""
        names = [folded_name(process.who, process.folded)] if process.folded >= 0 else []
        is_first = False
        for name in [*names, segment_name(process.who, number)]:
            for count, line in enumerate(lines_of(self._run.events / name), 1):
                if is_first and line.startswith(_STEP):
                    history.add_first_step(line)
                    is_first = False
                elif line.startswith(_FOLDED):
                    if event := parsed(line):
                        history.add_step(event)
                elif line.startswith(_MEMORY):
                    history.add_memory(line)
                elif not line.startswith(_LEFT_OUT):
                    history.add_other(line)
                    is_first = is_first or line.startswith(_READY)
                if count % LINES_PER_POLL == 0:
                    yield

    def _write(self, who: str, number: int, history: EventHistory) -> None:
        folder = self._run.events
        text = b"".join(history.lines()).decode(errors="replace")
        write_whole(folder / folded_name(who, number), text)
        delete_folded(folder, who, number)
