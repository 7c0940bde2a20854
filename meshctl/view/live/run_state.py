"""The state of a run, which the dashboard and the summary draw. It is computed from events and rows of
metrics.

It depends on neither a clock nor a terminal, so a running job and a run that is read from disk have the same
state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshctl.plan.model import Plan
from meshctl.run.events import Event

State = Literal["waiting", "starting", "running", "done", "stopped", "failed"]
"""`stopped`: the worker was ended because another one failed."""
MAX_SHOWN = 8
"""Maximum number of metrics that are shown if the recipe lists none."""
SLOW_PHASE_S = 0.1
GB = 1e9
DOWNLOADING = "downloading"
MAX_POINTS = 512
"""Maximum number of stored points of a metric. Beyond it, every second point is dropped."""


@dataclass
class Timing:
    """The seconds that a repeated activity takes: in total, on average, and recently."""

    total: float = 0.0
    times: int = 0
    recent: float = 0.0
    """A moving average over about the last ten times."""

    def add(self, seconds: float, times: int = 1) -> None:
        """Adds the seconds of one time, or the sum of several."""
        self.recent += (seconds / times - self.recent) / min(self.times + 1, 10)
        self.total += seconds
        self.times += times

    @property
    def mean(self) -> float:
        return self.total / self.times if self.times else 0.0


@dataclass
class History:
    """The values of one metric over the steps."""

    first: float | None = None
    last: float | None = None
    points: list[float] = field(default_factory=list)
    """At most `MAX_POINTS`, evenly spaced over the run."""
    _every: int = 1
    _seen: int = 0

    def add(self, value: float | None) -> None:
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None and self._seen % self._every == 0:
            self.points.append(value)
        self._seen += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self._every *= 2


@dataclass
class GroupState:
    workers: int
    states: dict[int, State] = field(default_factory=dict)
    stages: dict[str, Timing] = field(default_factory=dict)
    """Stage -> the seconds that a worker spends in it in a step, over all workers and steps."""
    step: Timing = field(default_factory=Timing)
    phases: dict[str, float] = field(default_factory=dict)
    """Phase before the first step -> its seconds in the worker that took longest."""
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Rank -> (its present phase, the time at which the phase began)."""

    def begin_phase(self, rank: int, phase: str, time: float) -> None:
        """Ends the present phase of a rank and begins `phase`. If `phase` is empty, no phase begins."""
        if before := self.running.pop(rank, None):
            name, begun = before
            self.phases[name] = max(self.phases.get(name, 0.0), time - begun)
        if phase:
            self.running[rank] = phase, time

    @property
    def phase(self) -> str:
        """The phase that began first among the present phases of all workers; empty for none."""
        return min(self.running.values(), key=lambda each: each[1], default=("", 0.0))[0]

    @property
    def slow_phases(self) -> list[tuple[str, float]]:
        """The phases of at least `SLOW_PHASE_S`."""
        return [(phase, seconds) for phase, seconds in self.phases.items() if seconds >= SLOW_PHASE_S]

    @property
    def state(self) -> State:
        """The worst state of any worker. It is `running` when no worker is starting any more."""
        states = [self.states.get(rank, "waiting") for rank in range(self.workers)]
        for state in ("failed", "stopped", "waiting", "starting", "running"):
            if state in states:
                return "starting" if state == "waiting" and len(set(states)) > 1 else state
        return "done"

    @property
    def waits(self) -> float:
        """The recent seconds of a step that a worker spends outside of its stages: it waits for other workers
        or moves batches."""
        return max(0.0, self.step.recent - sum(timing.recent for timing in self.stages.values()))

    @property
    def waits_mean(self) -> float:
        """The mean of these seconds over all steps."""
        return max(
            0.0,
            self.step.mean - sum(timing.total for timing in self.stages.values()) / max(1, self.step.times),
        )


def download_line(value: Mapping[str, Any]) -> str:
    """Returns the progress of a download, `downloading ORG/NAME: 1.2 of 16 GB`."""
    received, total = (float(value.get(key) or 0) / GB for key in ("received", "total"))
    amount = f"{received:.2g} of {total:.2g} GB" if total else "begins"
    return f"{DOWNLOADING} {value.get('model', '')}: {amount}"


def saving_line(event: Event) -> str:
    """Returns the line about a checkpoint that is written beside training."""
    return f"checkpoint of step {event.step} is being written"


def restart_line(event: Event) -> str:
    """Returns the line about a restart, `restarted after step 40: train:1 failed: killed by SIGKILL`."""
    where = f"after step {event.step}" if event.step else "from the beginning"
    return f"restarted {where}: {event.value.get('cause', '')}"


class RunState:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.groups = {group.name: GroupState(group.workers) for group in plan.groups}
        self.routes: dict[str, int] = {route.name: 0 for route in plan.routes}
        """Route -> the bytes sent by all workers in all steps."""
        self.histories: dict[str, History] = {}
        self.step = 0
        """The last complete step."""
        self.steps = plan.run.steps
        """The planned number of steps; the data may end earlier. 0 if only a stop ends the run."""
        self.source = ""
        """The source whose data end the run, as planned; empty if the run ends after `run.steps`."""
        self.warnings: list[str] = []
        """The warnings of the launcher in this attempt."""
        self.restarts: list[str] = []
        """A line for each restart after a failure: from which step, and why."""
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None
        """(step, time) of the first row of metrics from step 1 on, and of the last row."""
        self._stopping = False
        self._programs = {group.name for group in plan.groups if group.program}

    def on_event(self, event: Event) -> None:
        if event.name in ("launched", "stopping"):
            self._stopping = event.name == "stopping"
        if event.name == "warning":
            self.warnings.append(str(event.value.get("text", "")))
        if event.name == "launched":
            self.warnings = []
            for group in self.groups.values():
                group.phases, group.running = {}, {}
        if event.name == "restarted":
            self.restarts.append(restart_line(event))
            self.step, self.last = event.step or 0, None
        if event.name == "resumed" and event.step is not None:
            self.step = event.step
        if event.group not in self.groups or event.rank is None:
            return
        if event.name == "ready":
            self.steps = event.value.get("last") or self.steps
            self.source = event.value.get("source") or ""
        group = self.groups[event.group]
        if event.name in ("phase", "ready", "fault", "exited"):
            group.begin_phase(event.rank, str(event.value.get("phase", "")), event.time)
        state = self._state_after(event, group.states.get(event.rank, "waiting"))
        if state:
            group.states[event.rank] = state
        elif event.name in ("step", "steps"):
            self._worked(group, event.value)

    def _state_after(self, event: Event, before: State) -> State | None:
        match event.name:
            case "started":
                return "running" if event.group in self._programs else "starting"
            case "ready":
                return "running"
            case "done":
                return "done"
            case "fault":
                return "stopped" if event.value.get("lost") else "failed"
            case "exited" if event.value.get("code"):
                if before in ("failed", "stopped"):
                    return before
                return "stopped" if self._stopping or event.value.get("stopped") else "failed"
            case "exited":
                return "done"
        return None

    def _worked(self, group: GroupState, value: Mapping[str, Any]) -> None:
        group.step.add(value.get("seconds", 0.0), value.get("count", 1))
        times = value.get("times", {})
        for stage, seconds in value.get("stages", {}).items():
            group.stages.setdefault(stage, Timing()).add(seconds, times.get(stage, 1))
        for route, sent in value.get("routes", {}).items():
            self.routes[route] = self.routes.get(route, 0) + sent

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        """Adds a row of metrics. A row with the step of the last row adds values to that row."""
        here = (int(metrics["step"]), float(metrics["time"]))
        again = self.last is not None and here[0] == self.last[0]
        self.last = here
        if here[0] and self.first is None:
            self.first = here
        self.step = here[0]
        for name, value in metrics.items():
            if name in ("step", "time"):
                continue
            if again and name in self.histories:
                self.histories[name].last = value
            else:
                self.histories.setdefault(name, History()).add(value)

    def shown(self) -> Iterator[tuple[str, History]]:
        """Yields (name, history) of the metrics that the recipe lists, or else of the first `MAX_SHOWN`.
        Metrics without values are left out."""
        for name in self.plan.run.show or list(self.histories)[:MAX_SHOWN]:
            if name in self.histories:
                yield name, self.histories[name]

    @property
    def failed(self) -> list[tuple[str, int]]:
        """(group, rank) of each worker that failed."""
        return [
            (name, rank)
            for name, group in self.groups.items()
            for rank, state in sorted(group.states.items())
            if state == "failed"
        ]

    @property
    def steps_per_second(self) -> float:
        """The rate between the first and the last row of metrics, so that the start of the run does not
        count; 0 with fewer than two rows."""
        if not self.first or not self.last or self.last[1] <= self.first[1]:
            return 0.0
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
