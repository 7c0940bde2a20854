"""Folds the events of workers into one line per step, as in `metrics.jsonl`.

    fold = Fold({"rollout": 2, "train": 2}, since=time.time())
    for event in follower.new():
        for line in fold.add(event):           # {"step": 3, "time": 1.25, "metrics.loss": 0.7,
                                               "rollouts.reward": 0.4}
            observers.on_row(line)

A worker reports its metrics of a step, and then `step`. A step is complete once every worker of every group
of components has reported `step` for it or for a later one, so its line follows the slowest worker. A step
that some worker never ends has no line. Metrics that are reported after the last step (by a stage with
`when: end` in a run whose end was not known, or in `close`) belong to that step: its line is repeated with
all its metrics, and the tracker replaces it.

Values of one name are joined by the `collect` of their event: `mean` by weight, `sum`, or `first` for the
lowest rank's. They are joined in the order of groups and ranks, so the same run gives the same digits. A
worker without samples (weight 0) is left out of a mean: it reports NaN, the mean over an empty batch. A value
that is not finite, and one over no samples, is None (`null` in JSON, which has no NaN), so that a reader sees
that the metric was reported. The first of the two is also a `NotFinite`, because it ends a run with `on_nan:
stop`:

    for found in fold.not_finite(): ...        # of the lines since the last call
    fold.pending_not_finite()                  # of the steps that have no line, after a failure

A run that continues from a checkpoint calls `elapsed = continue_rows(run, step, attempts)` and folds with
`after=step, elapsed=elapsed`. Then every step occurs exactly once. The rows up to this step survive. The
others were of steps that are lost: they run again, and their rows move to `metrics.lost.jsonl`, each with the
attempt that made it. The file of a long run has millions of rows: its end is found from the end, and its rows
are read one by one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.reading import MAX_LINES_BYTES, decoded, is_number, lines_of, opened

Worker = tuple[str, int]
"""Group and rank."""


@dataclass(frozen=True)
class _Part:
    worker: Worker
    value: float
    weight: float
    collect: str
    stage: str

    @property
    def is_counted(self) -> bool:
        """True if the value is part of the metric."""
        is_without_value = self.collect == "mean" or not math.isfinite(self.value)
        return self.collect == "sum" or self.weight != 0 or not is_without_value


@dataclass(frozen=True)
class NotFinite:
    """A metric that is NaN or infinite."""

    metric: str
    step: int
    value: float
    stage: str
    workers: tuple[Worker, ...]
    """The workers whose values are not finite; all that reported one where only the result is not."""


@dataclass
class _Step:
    parts: dict[str, list[_Part]] = field(default_factory=dict)
    ended: float = 0.0
    """The time at which the last worker ended the step, by its own clock."""
    fresh: bool = False
    """True if the step has values that no returned line contains yet."""


class Fold:
    def __init__(
        self, workers: Mapping[str, int], *, since: float, after: int | None = None, elapsed: float = 0.0
    ) -> None:
        """`workers` has the number of workers of each group of components. `since` is the start of this
        attempt, whose events are added, in seconds since the epoch. Events are not selected by their time,
        because the clock of another node may be behind. `after` is the step that the run continues from, and
        `elapsed` the seconds that it had run until then.
        """
        self._through: dict[Worker, int] = {
            (group, rank): -1 for group, count in workers.items() for rank in range(count)
        }
        """Worker -> the last step that it has ended."""
        self._steps: dict[int, _Step] = {}
        """The steps that have no line yet, and the last step that has one."""
        self._since, self._elapsed = since, elapsed
        self._known = -1 if after is None else after
        """Events of this step and earlier ones are ignored."""
        self._given = self._known
        """The last step that has a line."""
        self._not_finite: list[NotFinite] = []
        self._away = set[Worker]()
        """The workers that restart."""

    @property
    def last(self) -> int:
        """The last step that has a line, or before the first line the step that the run continues from; -1
        where it does not continue."""
        return self._given

    def through(self, group: str) -> int:
        """Returns the last step that all workers of a group have ended; -1 before the first."""
        return min(step for (name, _), step in self._through.items() if name == group)

    def restart(self, group: str) -> None:
        """Drops what the workers of a group report until they are ready again: it restarts. What they have
        reported of the steps that they run again is dropped then."""
        for worker in [worker for worker in self._through if worker[0] == group]:
            self._through[worker] = min(self._through[worker], self._given)
            self._away.add(worker)

    def _return(self, worker: Worker, step: int) -> None:
        """Adds the events of a worker again, which runs again after a step."""
        self._away.discard(worker)
        self._through[worker] = step
        for number, state in self._steps.items():
            if number > step:
                for key, parts in state.parts.items():
                    state.parts[key] = [part for part in parts if part.worker != worker]

    def not_finite(self) -> list[NotFinite]:
        """Returns the metrics that are not finite, of the lines since the last call."""
        found, self._not_finite = self._not_finite, []
        return found

    def pending_not_finite(self) -> list[NotFinite]:
        """Returns the metrics that are not finite, of the first step without a line in which there are any.
        Values that are missing cannot make a mean or a sum finite; what is collected by `first` is left
        out."""
        for step in sorted(step for step in self._steps if step > self._given):
            joined = self._joined(self._steps[step])
            found = [
                _not_finite(key, step, value, parts)
                for key, parts, value in joined
                if value is not None and not math.isfinite(value) and parts[0].collect != "first"
            ]
            if found:
                return found
        return []

    def add(self, event: Event) -> list[Row]:
        """Returns the lines of the steps that this event completes, in order; for most events there are
        none."""
        worker = (event.group, event.rank if event.rank is not None else -1)
        step = event.step or 0
        if worker in self._away:
            if event.name != "ready":
                return []
            self._return(worker, step)
            return list(self._complete())  # it had ended steps before, which the others have ended meanwhile
        if worker not in self._through or step <= self._known:
            return []
        if event.name == "metric":
            self._join(worker, step, event)
        elif event.name == "step":
            was_behind = self._through[worker] <= self._given
            self._end(worker, step, event.time)
            return list(self._complete()) if was_behind else []
        elif event.name == "done":
            return list(self._complete())  # `close` may have logged numbers
        return []

    def _join(self, worker: Worker, step: int, event: Event) -> None:
        state = self._steps.setdefault(step, _Step())
        state.fresh = True
        weight, collect = float(event.value.get("weight", 1.0)), str(event.value.get("collect", "mean"))
        for name, value in event.value.get("values", {}).items():
            key = f"{event.stage}.{name}" if event.stage else name
            state.parts.setdefault(key, []).append(_Part(worker, value, weight, collect, event.stage))

    def _end(self, worker: Worker, step: int, time: float) -> None:
        state = self._steps.setdefault(step, _Step())
        state.ended = max(state.ended, time)
        self._through[worker] = max(self._through[worker], step)

    def _complete(self) -> Iterator[Row]:
        last = min(self._through.values())
        if last < self._given:
            return
        for step in sorted(step for step in self._steps if step <= last):
            state = self._steps[step]
            if step > self._given or state.fresh:
                yield self._line(step, state)
            if step < last:
                del self._steps[step]
        self._given = max(self._given, last)
        self._known = max(self._known, last - 1)

    def _line(self, step: int, state: _Step) -> Row:
        state.fresh = False
        values: dict[str, float | None] = {}
        for key, parts, value in self._joined(state):
            if value is not None and not math.isfinite(value):
                self._not_finite.append(_not_finite(key, step, value, parts))
                value = None
            values[key] = value
        return {"step": step, "time": round(self._elapsed + max(0.0, state.ended - self._since), 6), **values}

    def _joined(self, state: _Step) -> Iterator[tuple[str, list[_Part], float | None]]:
        """Yields each metric of a step with its counted parts and its value, which is None if no part
        counts."""
        for key, reported in sorted(state.parts.items()):
            parts = sorted((part for part in reported if part.is_counted), key=lambda part: part.worker)
            yield key, parts, join(parts) if parts else None


def join(parts: Sequence[_Part]) -> float:
    """Returns the value of a metric from those of several workers, in the given order."""
    collect = parts[0].collect
    if collect == "first":
        return parts[0].value
    if collect == "sum":
        return sum(part.value for part in parts)
    weight = math.fsum(part.weight for part in parts)
    return sum(part.value * part.weight for part in parts) / weight if weight else math.nan


def _not_finite(metric: str, step: int, value: float, parts: Sequence[_Part]) -> NotFinite:
    wrong = [part for part in parts if not math.isfinite(part.value)] or parts
    workers = tuple(dict.fromkeys(part.worker for part in wrong))
    return NotFinite(metric, step, value, wrong[0].stage, workers)


Row = dict[str, Any]
"""`step`, `time`, and a number or None per metric, by `STAGE.NAME`."""

BLOCK_BYTES = 1 << 16
MAX_ROW_BYTES = 1 << 20


def as_json(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def rows_of(path: Path, start: int = 0) -> Iterator[Row]:
    """Returns the rows from a position in bytes on; none if there is no file. A text that is no whole row,
    for example after a kill, is skipped."""
    return filter(None, map(parsed_row, lines_of(path, start)))


def read(path: Path) -> list[Row]:
    return list(rows_of(path))


def last_row(path: Path) -> Row | None:
    """Returns the last row; None if there is none."""
    return next((row for _, row in _from_end(path)), None)


def cut(path: Path, after: int) -> float:
    """Removes the rows of the steps after `after`. Returns the `time` of the last row that stays, in seconds;
    0 if none does."""
    end, row = end_of(path, after)
    if path.exists() and path.stat().st_size > end:
        os.truncate(path, end)
    return float(row["time"]) if row else 0.0


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
    """Moves the rows that are lost where a run continues after `step`, or starts again where it is None.
    Returns the `time` of the last row, in seconds; 0 without one. Raises `OSError` if a file cannot be
    written."""
    last = -1 if step is None else step
    end, _ = end_of(run.metrics, last)
    if lost := [row for row in rows_of(run.metrics, end) if row["step"] > last]:
        with run.lost_metrics.open("a", encoding="utf-8") as file:
            for row in lost:
                file.write(as_json({**row, "attempt": attempts.last_of(row["step"])}))
    return cut(run.metrics, last)


def end_of(path: Path, after: int) -> tuple[int, Row | None]:
    """Returns the size in bytes of a file without the rows of the steps after `after`, and its last row
    then."""
    return next(((end, row) for end, row in _from_end(path) if row["step"] <= after), (0, None))


def _from_end(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the rows, the last one first, each with the position of its end."""
    with suppress(FileNotFoundError), opened(path, MAX_LINES_BYTES) as file:
        start = file.seek(0, os.SEEK_END)
        rest = b""
        """The bytes from `start` on that were not yielded."""
        while start:
            size = min(start, BLOCK_BYTES)
            start -= size
            file.seek(start)
            first, *lines = (file.read(size) + rest).splitlines(keepends=True)
            yield from _rows_at(start + len(first), lines)
            rest = first if len(first) < MAX_ROW_BYTES else b""
        yield from _rows_at(0, [rest])


def _rows_at(start: int, lines: list[bytes]) -> Iterator[tuple[int, Row]]:
    end = start + sum(map(len, lines))
    for line in reversed(lines):
        if row := parsed_row(line):
            yield end, row
        end -= len(line)


def parsed_row(text: bytes) -> Row | None:
    """Returns the row of a line; None for a text that is no whole row."""
    try:
        row = decoded(text.decode()) if text.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not is_number(row.get("time")):
        return None
    return row if all(value is None or is_number(value) for value in row.values()) else None
