"""The content of the report about one run, read from its directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run.events import Event
from meshctl.run.launches import git_state, launches
from meshctl.run.log_files import read_tail, without_stamps
from meshctl.run.row_file import rows_of
from meshctl.text.redaction import redact
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.report_page.run_clock import RunClock, launches_of
from meshctl.view.report_page.series import Series
from meshctl.view.report_page.step_spans import StepSpans, read_events

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


@dataclass(frozen=True)
class Log:
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
        if seconds.count:
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
        launched = launches_of(self.launcher_events)
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
                    now.lost = self._reached(now.time, event.time) - (event.step or 0)
                case "over" if now and event.value.get("code"):
                    now.cause = str(event.value.get("reason", ""))
        return found

    @property
    def group_restarts(self) -> list[Event]:
        """The restarts of single groups."""
        return [event for event in self.events("restarted") if "group" in event.value]

    def _reached(self, begin: float, end: float) -> int:
        """Returns the last step that any worker has ended between two times."""
        spans = (span for spans in self.steps.spans.values() for span in spans)
        return max((span.last for span in spans if begin <= span.end <= end), default=0)

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
