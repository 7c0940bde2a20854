"""The rows of `metrics.jsonl` when a run continues after a step.

    attempts = PastAttempts()
    for event in follower.new(): attempts.add(event)
    elapsed = continue_rows(run, step, attempts)

The rows up to the step survive. The others were of steps that are lost: they run again, and their rows move
to `metrics.lost.jsonl`, each with the attempt that made it. A row that is missing, because the launcher died
before it wrote the row of a step that a checkpoint covers, is folded again from the events of the workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event, Follower
from meshctl.run.metrics import Fold, Worker
from meshctl.run.row_file import Row, as_json, cut, end_of, has_all, last_row, rows_of


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


def continue_rows(run: RunDir, step: int | None, attempts: PastAttempts) -> float:
    """Removes the rows that are lost where a run continues after `step`, or starts again where it is None,
    and adds those that are missing. Returns the `time` of the last row, in seconds; 0 without one. Raises
    `OSError` if a file cannot be written."""
    if not run.metrics.exists() and step is None:
        return 0.0
    last = -1 if step is None else step
    _move_lost(run, last, attempts)
    cut(run.metrics, last)
    if last > 0:
        _add_missing(run, last)
    row = last_row(run.metrics)
    return float(row["time"]) if row else 0.0


def _move_lost(run: RunDir, last: int, attempts: PastAttempts) -> None:
    """Copies the rows of later steps to the file of lost rows."""
    end, _ = end_of(run.metrics, last)
    lost = (row for row in rows_of(run.metrics, end) if row["step"] > last)
    if first := next(lost, None):
        with run.lost_metrics.open("a", encoding="utf-8") as file:
            for row in chain([first], lost):
                file.write(as_json({**row, "attempt": attempts.last_of(row["step"])}))


def _add_missing(run: RunDir, last: int) -> None:
    """Adds the rows up to `last` that are missing: nearly always those after the last row, otherwise some in
    a file of an earlier version or after a full disk, which is then written again."""
    newest = last_row(run.metrics)
    if newest and has_all(run.metrics, newest):
        if newest["step"] == last:
            return
        found = _continued(folded_again(run, range(newest["step"] + 1, last + 1)), {newest["step"]: newest})
        if found:
            with run.metrics.open("a", encoding="utf-8") as file:
                file.write("".join(map(as_json, found)))
        return
    rows = {row["step"]: row for row in rows_of(run.metrics)}
    missing = set(range(last + 1)) - rows.keys()
    rows |= {row["step"]: row for row in _continued(folded_again(run, missing), rows)}
    write_whole(run.metrics, "".join(as_json(rows[number]) for number in sorted(rows)))


def _continued(found: Iterable[tuple[Row, float]], known: Mapping[int, Row]) -> list[Row]:
    """Returns rows that were missing, with the time of the run, which goes on from the row before. `found`
    has each with the time at which its step ended; `known` are rows that are there."""
    rows, before_time, before_ended = list[Row](), 0.0, 0.0
    for row, ended in found:
        passed = max(0.0, ended - before_ended) if before_ended else 0.0
        before = known.get(row["step"] - 1)
        time = before["time"] if before else before_time
        rows.append({**row, "time": round(time + passed, 6)})
        before_time, before_ended = time + passed, ended
    return rows


@dataclass
class _Steps:
    """The events of some steps of one worker, of the last attempt that ran each."""

    events: dict[int, list[Event]] = field(default_factory=dict)
    _of_attempt: set[int] = field(default_factory=set)
    """The steps of which the running attempt has reported something."""
    _is_starting: bool = False
    """True if the worker prepares its first step. A metric of this time is one of step 0, or none."""

    def add(self, event: Event) -> None:
        if event.name in ("phase", "ready"):
            if not self._is_starting:
                self._of_attempt.clear()
            self._is_starting = event.name == "phase"
            return
        step = event.step or 0
        if self._is_starting and step:
            return
        if step not in self._of_attempt:
            self._of_attempt.add(step)
            self.events[step] = []
        self.events[step].append(event)


def folded_again(run: RunDir, steps: Collection[int]) -> list[tuple[Row, float]]:
    """Returns the rows of some steps, which all workers have ended, folded from the events, and the time at
    which each ended, in seconds since the epoch. A step without events is left out."""
    workers: dict[Worker, _Steps] = {}
    for event in Follower(run.events).of_steps(steps):
        if event.rank is not None:
            workers.setdefault((event.group, event.rank), _Steps()).add(event)
    found = []
    for step in sorted(steps):
        reports = {worker: kept.events[step] for worker, kept in workers.items() if step in kept.events}
        if reports:
            found.append((_row(step, reports), max(_ended(events) for events in reports.values())))
    return found


def _row(step: int, reports: dict[Worker, list[Event]]) -> Row:
    """Returns the row of a step, without the time of the run."""
    groups = {group for group, _ in reports}
    sizes = {group: 1 + max(rank for name, rank in reports if name == group) for group in groups}
    fold = Fold(sizes, since=0.0, after=step - 1)
    lines: list[Row] = []
    for group, rank in sorted(reports):
        for event in reports[group, rank]:
            lines += fold.add(event)
    for group, size in sizes.items():  # closes the step for workers that reported metrics only
        for rank in range(size):
            lines += fold.add(Event("step", group, rank, step))
    return lines[-1]


def _ended(events: Sequence[Event]) -> float:
    return max(event.time for event in events)
