"""The rows of `metrics.jsonl` when a run continues after a step.

    attempts = PastAttempts()
    for event in follower.new(): attempts.add(event)
    rows = continue_rows(run, step, attempts)

The rows up to the step survive. The others were of steps that are lost: they run again, and their rows move
to `metrics.lost.jsonl`, each with the attempt that made it. A row that is missing, because the launcher died
before it wrote the row of a step that a checkpoint covers, is folded again from the events of the workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event, Follower
from meshctl.run.metrics import Fold, Line, Worker, as_json, read


class PastAttempts:
    """The steps after which the attempts of a run have begun."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, int]] = []
        """The number of each attempt and the step before its first one, in their order."""

    def add(self, event: Event) -> None:
        if event.name == "launched":
            self._begun.append((int(event.value.get("attempt", 0)), 0))
        elif event.name == "resumed" and self._begun:
            self._begun[-1] = self._begun[-1][0], event.step or 0

    def last_of(self, step: int) -> int:
        """Returns the last attempt that can have run a step; 0 if there is none."""
        return next((number for number, begun in reversed(self._begun) if begun < step or not step), 0)


def continue_rows(run: RunDir, step: int | None, attempts: PastAttempts) -> tuple[Line, ...]:
    """Returns the rows that survive where a run continues after `step`, or starts again where it is None, and
    writes them. Raises `OSError` if a file cannot be written."""
    if not run.metrics.exists() and step is None:
        return ()
    last = -1 if step is None else step
    rows = {row["step"]: row for row in read(run.metrics)}
    lost = [row for number, row in rows.items() if number > last]
    if lost:
        _append_lost(run, [{**row, "attempt": attempts.last_of(row["step"])} for row in lost])
    kept = {number: row for number, row in rows.items() if number <= last}
    missing = set(range(1, last + 1)) - kept.keys()
    if missing:
        _restore(kept, folded_again(run, missing | ({0} - kept.keys())))
    surviving = tuple(kept[number] for number in sorted(kept))
    write_whole(run.metrics, "".join(map(as_json, surviving)))
    return surviving


def _append_lost(run: RunDir, rows: Sequence[Line]) -> None:
    with run.lost_metrics.open("a", encoding="utf-8") as file:
        file.write("".join(map(as_json, rows)))


def _restore(rows: dict[int, Line], found: Iterable[tuple[Line, float]]) -> None:
    """Adds rows that were missing. `found` has each with the time at which its step ended. The time of the
    run goes on from the row before."""
    before_time, before_ended = 0.0, 0.0
    for row, ended in found:
        passed = max(0.0, ended - before_ended) if before_ended else 0.0
        known = rows.get(row["step"] - 1)
        time = known["time"] if known else before_time
        rows[row["step"]] = {**row, "time": round(time + passed, 6)}
        before_time, before_ended = time + passed, ended


@dataclass
class _Steps:
    """The events of some steps of one worker, of the last attempt that ran each."""

    events: dict[int, list[Event]] = field(default_factory=dict)
    _of_attempt: set[int] = field(default_factory=set)
    """The steps of which the running attempt has reported something."""
    _is_starting: bool = False
    """Whether the worker prepares its first step. A metric of this time is one of step 0, or none."""

    def add(self, event: Event, steps: Collection[int]) -> None:
        if event.name in ("phase", "ready"):
            if not self._is_starting:
                self._of_attempt.clear()
            self._is_starting = event.name == "phase"
            return
        step = event.step or 0
        if step not in steps or event.name not in ("metric", "step") or (self._is_starting and step):
            return
        if step not in self._of_attempt:
            self._of_attempt.add(step)
            self.events[step] = []
        self.events[step].append(event)


def folded_again(run: RunDir, steps: Collection[int]) -> list[tuple[Line, float]]:
    """Returns the rows of some steps, which all workers have ended, folded from the events, and the time at
    which each ended, in seconds since the epoch. A step without events is left out."""
    workers: dict[Worker, _Steps] = {}
    for event in Follower(run.events).new():
        if event.rank is not None:
            workers.setdefault((event.group, event.rank), _Steps()).add(event, steps)
    found = []
    for step in sorted(steps):
        reports = {worker: kept.events[step] for worker, kept in workers.items() if step in kept.events}
        if reports:
            found.append((_row(step, reports), max(_ended(events) for events in reports.values())))
    return found


def _row(step: int, reports: dict[Worker, list[Event]]) -> Line:
    """Returns the row of a step, without the time of the run."""
    groups = {group for group, _ in reports}
    sizes = {group: 1 + max(rank for name, rank in reports if name == group) for group in groups}
    fold = Fold(sizes, since=0.0, after=step - 1)
    lines: list[Line] = []
    for group, rank in sorted(reports):
        for event in reports[group, rank]:
            lines += fold.add(event)
    for group, size in sizes.items():  # closes the step for workers that reported metrics only
        for rank in range(size):
            lines += fold.add(Event("step", group, rank, step))
    return lines[-1]


def _ended(events: Sequence[Event]) -> float:
    return max(event.time for event in events)
