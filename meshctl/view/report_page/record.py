"""The content of the report about one run, read from its directory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from meshctl.run.directory import RunDir
from meshctl.run.events import Event, event_files, parsed
from meshctl.run.launcher import git_state, launches
from meshctl.run.logs import read_tail, without_stamps
from meshctl.run.metrics import rows_of
from meshctl.run.reading import lines_of, size_of
from meshctl.text.redaction import redact
from meshctl.view.live.seen_run import SeenRun

MAX_PIECES = 300
"""The number of pieces of equal length of a run, of which the least and the greatest value are kept."""
Point = tuple[float, float | None]
"""(step, value); the value is None where it was not finite."""


@dataclass
class Series:
    """The values of one metric over the steps of a run of any length, in bounded memory."""

    gaps: list[float] = field(default_factory=list)
    """The first steps whose value was not finite."""
    points: list[Point] = field(default_factory=list)
    """The values by step: all of them, or of a long run the first, the last and the extremes of each piece,
    so that a spike survives. A value of None is a gap after the point before it."""

    def add(self, step: float, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            if len(self.gaps) < MAX_PIECES:
                self.gaps.append(step)
            if self.points and self.points[-1][1] is not None:
                self.points.append((self.points[-1][0], None))
            return
        self.points.append((step, value))
        if len(self.points) > 4 * MAX_PIECES:
            self.points = thinned(self.points)


def thinned(points: list[Point]) -> list[Point]:
    """Returns the first and the last point, the extremes of each piece between them, and a gap for each piece
    that has some."""
    begin, end = points[0], points[-1]
    width = (end[0] - begin[0]) / MAX_PIECES or 1.0
    found = [begin]
    for _, piece in groupby(points, lambda point: int((point[0] - begin[0]) / width)):
        every = list(piece)
        values = [(value, step) for step, value in every if value is not None]
        kept = sorted({(step, value) for value, step in (min(values), max(values))}) if values else []
        found += [point for point in kept if point not in (begin, end)]
        if len(values) < len(every):
            found.append((found[-1][0], None))
    return found if found[-1] == end else [*found, end]


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


MAX_DECODED = 60_000
"""About how many `step` events are decoded."""
LINE_BYTES = 180
"""The size of a `step` event, at least."""
MAX_OTHERS = 50_000
_STEP, _METRIC = b'{"name":"step"', b'{"name":"metric"'
Worker = tuple[str, int]
"""(group, rank)"""


@dataclass(slots=True)
class Span:
    """One step of a worker, or several."""

    end: float
    """Seconds since the epoch."""
    last: int
    seconds: float
    """The seconds, summed over its steps, as in `stages`, `waits` and `sends`."""
    stages: Mapping[str, float]
    waits: Mapping[str, float]
    sends: Mapping[str, float]
    """Stage -> seconds until its value was sent; nothing for a run of an earlier version."""


@dataclass
class StepSpans:
    spans: dict[Worker, list[Span]] = field(default_factory=dict)
    others: list[Event] = field(default_factory=list)
    """All events but those of steps and metrics, in the order of time."""


def read_events(run: RunDir) -> StepSpans:
    """Reads the events of all processes. Of very many steps, one in so many is decoded and stands for all."""
    found = StepSpans()
    processes = [[run.events / file.name for file in files] for files in event_files(run.events).values()]
    every = max(1, sum(size_of(path) for paths in processes for path in paths) // LINE_BYTES // MAX_DECODED)
    for paths in processes:
        steps = 0
        for line in (line for path in paths for line in lines_of(path)):
            steps += (is_step := line.startswith(_STEP))
            if line.startswith(_METRIC) or (is_step and steps % every) or not (event := parsed(line)):
                continue
            if event.name not in ("step", "steps"):
                found.others.append(event)
            elif event.rank is not None and (span := span_of(event, every if is_step else 1)):
                found.spans.setdefault((event.group, event.rank), []).append(span)
    found.others = sorted(found.others[:MAX_OTHERS], key=lambda event: event.time)
    return found


def span_of(event: Event, times: int) -> Span | None:
    """Returns the times of a `step` or `steps` event that stands for so many; None where they are damaged."""
    value: Mapping[str, Any] = event.value
    try:
        seconds, last = times * float(value["seconds"]), int(event.step or 0)
        stages, waits, sends = (
            {name: times * spent for name, spent in dict(value.get(key, {})).items()}
            for key in ("stages", "waits", "sends")
        )
    except (KeyError, TypeError, ValueError):
        return None
    return Span(event.time, last, seconds, stages, waits, sends)


STEP_SECONDS = "seconds a step"
"""The name of the series of the time between two rows."""
MAX_LOGS = 4
LOG_BYTES, LOG_LINES = 32_768, 60
MAX_SERIES = 400
"""Maximum number of metrics."""


@dataclass
class Attempt:
    """One attempt of the run."""

    number: int
    time: float
    """Its beginning, in seconds since the epoch."""
    step: int = 0
    """The step after which it began; 0 for the beginning."""
    cause: str = ""
    """The reason why the run began again after it, or has failed; empty otherwise."""
    lost: int = 0
    """Number of its steps that ran again."""
    workers: dict[str, int] = field(default_factory=dict)
    """Group -> the number of its workers; empty in a run of an earlier version."""


class Log(NamedTuple):
    """The end of the log of a worker that failed."""

    worker: str
    path: str
    lines: tuple[str, ...]


@dataclass
class RunRecord:
    seen: SeenRun
    recipe: str
    """The composed recipe without its secrets."""
    series: dict[str, Series] = field(default_factory=dict)
    left_out: int = 0
    """Number of metrics that are not in `series`, because there are too many."""
    steps: StepSpans = field(default_factory=StepSpans)

    @classmethod
    def read(cls, seen: SeenRun, recipe: str) -> RunRecord:
        """Reads the files of a run."""
        record = cls(seen, recipe)
        record.steps = read_events(seen.run)
        record._read_rows()
        return record

    def _read_rows(self) -> None:
        before: tuple[float, float] | None = None
        seconds, left_out = Series(), set[str]()
        for row in rows_of(self.seen.run.metrics):
            step, time = row.pop("step"), row.pop("time")
            if before and step > before[0] and time >= before[1]:
                seconds.add(step, (time - before[1]) / (step - before[0]))
            before = step, time
            for name, value in row.items():
                if (one := self.series.get(name)) is None:
                    if len(self.series) >= MAX_SERIES:
                        left_out.add(name)
                        continue
                    one = self.series[name] = Series()
                one.add(step, value)
        if seconds.points:
            self.series[STEP_SECONDS] = seconds
        self.left_out = len(left_out)

    @cached_property
    def launches(self) -> list[dict[str, Any]]:
        """The facts of each launch; empty for a run of an earlier version."""
        return launches(self.seen.run)

    @property
    def git(self) -> dict[str, str]:
        """The state of the recipe's repository at the launch; empty outside of a repository."""
        state = git_state(self.seen.run)
        if not state:
            return {}
        changed = ", with changes that are not committed" if state["dirty"] else ""
        return {"git": f"{state['commit']} on {state['branch']}{changed}"}

    @cached_property
    def launcher_events(self) -> list[Event]:
        return [event for event in self.steps.others if event.rank is None and not event.group]

    @cached_property
    def clock(self) -> RunClock:
        spans = (spans[-1].end for spans in self.steps.spans.values())
        launched, is_restart = list[float](), False
        for event in self.launcher_events:
            if event.name == "launched" and not is_restart:
                launched.append(event.time)
            if event.name in ("launched", "restarted") and "group" not in event.value:
                is_restart = event.name == "restarted"
        return RunClock(launched, [*(event.time for event in self.steps.others), *spans])

    @cached_property
    def attempts(self) -> list[Attempt]:
        found = list[Attempt]()
        for event in self.launcher_events:
            now = found[-1] if found else None
            match event.name:
                case "launched":
                    number, workers = int(event.value.get("attempt", 0)), event.value.get("workers", {})
                    found.append(Attempt(number, event.time, workers=dict(workers)))
                case "resumed" if now:
                    now.step = event.step or 0
                case "restarted" if now and "group" not in event.value:
                    now.cause = str(event.value.get("cause", ""))
                    spans = (span for spans in self.steps.spans.values() for span in spans)
                    now.lost = max(
                        (span.last for span in spans if now.time <= span.end <= event.time), default=0
                    ) - (event.step or 0)
                case "over" if now and event.value.get("code"):
                    now.cause = str(event.value.get("reason", ""))
        return found

    @cached_property
    def faults(self) -> list[Event]:
        """The failures, the first one first. Those of workers that lost a peer come last."""
        found = [event for event in self.steps.others if event.name == "fault"]
        return sorted(found, key=lambda event: bool(event.value.get("lost")))

    def events(self, *names: str) -> list[Event]:
        return [event for event in self.steps.others if event.name in names]

    def logs(self) -> Iterator[Log]:
        """Yields the last lines of the workers that failed."""
        for group, rank in self.seen.state.failed[:MAX_LOGS]:
            path = self.seen.run.log(group, rank)
            text = without_stamps(read_tail(path, LOG_BYTES).decode(errors="replace"))
            lines = [redact(line) for line in text.splitlines()[-LOG_LINES:]]
            yield Log(f"{group}:{rank}", str(path.relative_to(self.seen.run.path)), tuple(lines))
