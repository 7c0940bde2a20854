"""The state of a run, which the dashboard, `status`, `watch` and the summary draw. It is computed from events
and rows of metrics.

It depends on neither a clock nor a terminal, so a running job and a run that is read from disk have the same
state. `state_file.py` stores it for other processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshctl.plan.model import Plan
from meshctl.run.events import Event, restart_line
from meshctl.view.times import TimeUse, WorkerTimes, time_use

State = Literal["waiting", "starting", "running", "done", "stopped", "failed"]
"""`stopped`: the worker was ended because another one failed."""
Condition = Literal["queued", "running", "stalled", "stopping", "done", "failed", "interrupted", "lost"]
"""The state of a whole run. `queued`: its job waits for nodes, or its head is starting there. `lost`: its
launcher is gone and has written no end, because it was killed."""
INTERRUPTED = (129, 130, 143)
"""The exit codes of runs that were interrupted."""
MAX_SHOWN = 8
"""Maximum number of metrics that are shown if the recipe lists none."""
SLOW_PHASE_S = 0.1
GB = 1e9
STARTING, DOWNLOADING = "starting", "downloading"
MAX_POINTS = 128
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
class Times:
    """The time of a launch, and the duration of the run, in seconds. The launches of a run that was continued
    are summed up, without the time between them."""

    began: float = 0.0
    """The time of the first launch, in seconds since the epoch; 0 if it has not begun."""
    launched: float = 0.0
    """The time of the last launch. A restart after a failure is no launch."""
    newest: float = 0.0
    """The time of the newest event."""
    before: float = 0.0
    """The seconds of earlier launches."""
    is_restarting: bool = False

    def add(self, event: Event) -> None:
        """Adds an event of the launcher."""
        if event.name == "launched":
            if not self.is_restarting:
                self.before += max(0.0, self.newest - self.launched) if self.launched else 0.0
                self.launched = event.time
                self.began = self.began or event.time
            self.is_restarting = False
        elif event.name == "restarted" and "group" not in event.value:
            self.is_restarting = True
        self.newest = max(self.newest, event.time)

    def seconds(self, now: float = 0.0) -> float:
        """Returns how long the run has run: until its newest event, or until `now` while it runs."""
        return self.before + max(0.0, (now or self.newest) - self.launched) if self.launched else 0.0


@dataclass
class History:
    """The values of one metric over the steps."""

    first: float | None = None
    last: float | None = None
    points: list[float] = field(default_factory=list)
    """At most `MAX_POINTS`, evenly spaced over the run."""
    steps: list[int] = field(default_factory=list)
    """The step of each point."""
    every: int = 1
    """Number of values for each stored point."""
    seen: int = 0
    """Number of values."""

    def add(self, value: float | None, step: int = 0) -> None:
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None and self.seen % self.every == 0:
            self.points.append(value)
            self.steps.append(step)
        self.seen += 1
        if len(self.points) > MAX_POINTS:
            self.points, self.steps = self.points[::2], self.steps[::2]
            self.every *= 2

    def cut(self, after: int) -> None:
        """Removes the points of later steps, which run again. Where points are thinned, the values between
        the last point and `after` are not known and are left out."""
        kept = bisect_right(self.steps, after)
        if kept < len(self.points):
            self.points, self.steps = self.points[:kept], self.steps[:kept]
            self.seen = kept * self.every
            self.last = self.points[-1] if kept else None
            self.first = self.first if kept else None


@dataclass
class GroupState:
    workers: int
    """The number of workers of the running attempt."""
    states: dict[int, State] = field(default_factory=dict)
    stages: dict[str, Timing] = field(default_factory=dict)
    """Stage -> the seconds that a worker spends in it in a step, over all workers and steps."""
    step: Timing = field(default_factory=Timing)
    times: dict[int, WorkerTimes] = field(default_factory=dict)
    """Rank -> the sums of its steps in this attempt, without the first one."""
    phases: dict[str, float] = field(default_factory=dict)
    """Phase before the first step -> its seconds in the worker that took longest."""
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Rank -> (its present phase, the time at which the phase began)."""

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
        spent = sum(timing.total for timing in self.stages.values())
        return max(0.0, self.step.mean - spent / max(1, self.step.times))


def download_line(value: Mapping[str, Any]) -> str:
    """Returns the progress of a download, `downloading ORG/NAME: 1.2 of 16 GB`."""
    received, total = (float(value.get(key) or 0) / GB for key in ("received", "total"))
    amount = f"{received:.2g} of {total:.2g} GB" if total else "begins"
    return f"{DOWNLOADING} {value.get('model', '')}: {amount}"


def saving_line(event: Event) -> str:
    """Returns the line about a checkpoint that is written beside training."""
    return f"checkpoint of step {event.step} is being written"


def notice_after(event: Event, notice: str) -> str:
    """Returns the line below the progress after an event: the launcher's last report. `notice` is the line
    before the event."""
    match event.name:
        case "ready" if notice == STARTING or notice.startswith(DOWNLOADING):
            return ""
        case "download":
            return download_line(event.value)
        case "stopping":
            reason = event.value.get("reason", "")
            return f"stopping: {reason}" if reason else "stopping"
        case "restarted":
            return restart_line(event)
        case "saving":
            return saving_line(event)
        case "checkpoint":
            return f"checkpoint of step {event.step}"
        case "stall":
            return str(next(iter(event.value.get("text", ())), "stalled"))
        case "warning":
            return f"warning: {event.value.get('text', '')}"
        case "over":
            return ""
    return notice


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
        self.notice = STARTING
        """The launcher's last report."""
        self.times = Times()
        self.attempt = 0
        self.checkpoint = 0
        """The step of the checkpoint that was published last; 0 without one."""
        self.stalled: list[str] = []
        """GROUP:RANK of the workers that hold up the run."""
        self.stall: list[str] = []
        """The lines of the report about them."""
        self.code: int | None = None
        """The exit code; None for a run without an end."""
        self.reason = ""
        """The reason that the run has ended: the cause of a failure, the signal, or the end of the data."""
        self.is_stopping = False
        self._programs = {group.name for group in plan.groups if group.program}

    @property
    def condition(self) -> Condition:
        """The state of the run, of which only events are known. Whether the launcher of a run without an end
        lives is not."""
        if self.code is not None:
            return "interrupted" if self.code in INTERRUPTED else "failed" if self.code else "done"
        if self.is_stopping:
            return "stopping"
        return "stalled" if self.stalled else "running"

    def on_attempt(self, number: int, step: int | None) -> None:
        """Removes what is known of the steps that run again. For a run that goes on from disk."""
        after = -1 if step is None else step
        for name, history in list(self.histories.items()):
            history.cut(after)
            if history.first is None:
                del self.histories[name]
        if self.first and self.first[0] > after:
            self.first = None
        self.step, self.last = step or 0, None
        if step is not None and self.notice == STARTING:
            self.notice = f"continues after step {step}"

    def on_event(self, event: Event) -> None:
        name = event.name
        if event.rank is None:
            self._on_launcher_event(event)
            return
        if event.time > self.times.newest:
            self.times.newest = event.time
        if name in ("step", "steps"):
            if group := self.groups.get(event.group):
                value, rank = event.value, event.rank or 0
                if rank in group.times or event.name == "steps":
                    group.times.setdefault(rank, WorkerTimes()).add(value)
                else:  # the first step, which takes longer, does not count
                    group.times[rank] = WorkerTimes()
                group.step.add(value.get("seconds", 0.0), value.get("count", 1))
                times = value.get("times", {})
                for stage, seconds in value.get("stages", {}).items():
                    group.stages.setdefault(stage, Timing()).add(seconds, times.get(stage, 1))
                for route, sent in value.get("routes", {}).items():
                    self.routes[route] = self.routes.get(route, 0) + sent
                if self.stalled:
                    self._advance({f"{event.group}:{event.rank}"})
        elif name != "metric" and event.group in self.groups:
            self._on_worker_event(event, self.groups[event.group])

    def _on_worker_event(self, event: Event, group: GroupState) -> None:
        self.notice = notice_after(event, self.notice)
        rank = event.rank or 0
        if event.name == "ready":
            self.steps = event.value.get("last") or self.steps
            self.source = event.value.get("source") or ""
            group.times.pop(rank, None)
        if event.name in ("phase", "ready", "fault", "exited"):
            phase = str(event.value.get("phase", ""))
            if before := group.running.pop(rank, None):
                name, begun = before
                group.phases[name] = max(group.phases.get(name, 0.0), event.time - begun)
            if phase:
                group.running[rank] = phase, event.time
        if state := self._state_after(event, group.states.get(rank, "waiting")):
            group.states[rank] = state

    def _on_launcher_event(self, event: Event) -> None:
        is_restart = self.times.is_restarting
        self.times.add(event)
        self.notice = notice_after(event, self.notice)
        match event.name:
            case "launched":
                self.is_stopping, self.code, self.reason, self.warnings = False, None, "", []
                self.attempt = int(event.value.get("attempt", 0))
                self._resize(event.value.get("workers"))
                self.stalled, self.stall = [], []
                if not is_restart:
                    self.notice = STARTING
                for group in self.groups.values():
                    group.phases, group.running = {}, {}
            case "stopping":
                self.is_stopping = True
            case "warning":
                self.warnings.append(str(event.value.get("text", "")))
            case "restarted":
                self.restarts.append(restart_line(event))
                if alone := event.value.get("group"):
                    self.stalled = [name for name in self.stalled if not name.startswith(f"{alone}:")]
                else:
                    self.step, self.last = event.step or 0, None
            case "resumed" if event.step is not None:
                self.step = self.checkpoint = event.step
                if not is_restart and self.notice == STARTING:
                    self.notice = f"continues after step {event.step}"
            case "checkpoint":
                self.checkpoint = event.step or 0
            case "stall":
                self._on_stall(event)
            case "over":
                self.code, self.reason = int(event.value.get("code", 0)), str(event.value.get("reason", ""))

    def _resize(self, workers: object) -> None:
        """Notes the numbers of workers of an attempt. Removes what is known of workers that it lacks."""
        for name, count in workers.items() if isinstance(workers, dict) else ():
            if (group := self.groups.get(name)) and isinstance(count, int) and count != group.workers:
                group.workers = count
                group.states = {rank: state for rank, state in group.states.items() if rank < count}
                group.times = {rank: times for rank, times in group.times.items() if rank < count}

    def _on_stall(self, event: Event) -> None:
        self._advance(event.value.get("advanced", ()))
        if workers := event.value.get("workers"):
            self.stalled, self.stall = list(workers), [str(line) for line in event.value.get("text", ())]

    def _advance(self, workers: Collection[str]) -> None:
        self.stalled = [name for name in self.stalled if name not in workers]

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
                return "stopped" if self.is_stopping or event.value.get("stopped") else "failed"
            case "exited":
                return "done"
        return None

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        """Adds a row of metrics. A row with the step of the last row adds values to that row."""
        here = (int(metrics["step"]), float(metrics["time"]))
        again = self.last is not None and here[0] == self.last[0]
        self.last = here
        if here[0] and self.first is None:
            self.first = here
        self.step = here[0]
        if self.notice == STARTING:
            self.notice = ""
        for name, value in metrics.items():
            if name in ("step", "time"):
                continue
            if again and name in self.histories:
                self.histories[name].last = value
            else:
                self.histories.setdefault(name, History()).add(value, here[0])

    def shown(self) -> Iterator[tuple[str, History]]:
        """Yields (name, history) of the metrics that the recipe lists, or else of the first `MAX_SHOWN`.
        Metrics without values are left out."""
        for name in self.plan.run.show or list(self.histories)[:MAX_SHOWN]:
            if name in self.histories:
                yield name, self.histories[name]

    @property
    def time_use(self) -> TimeUse | None:
        """The use of time of this attempt; None before the second step, and for programs."""
        return time_use(self.plan, {name: group.times for name, group in self.groups.items()})

    @property
    def failed(self) -> list[tuple[str, int]]:
        """(group, rank) of each worker that failed."""
        return [
            (name, rank)
            for name, group in self.groups.items()
            for rank, state in sorted(group.states.items())
            if state == "failed"
        ]

    def seconds(self, now: float = 0.0) -> float:
        """Returns how long the run has run: until its newest event, or until `now` while it runs. The time of
        a row counts from a moment before the first event."""
        return max(self.times.seconds(now), self.last[1] if self.last else 0.0)

    @property
    def steps_per_second(self) -> float:
        """The rate between the first and the last row of metrics, so that the start of the run does not
        count; 0 with fewer than two rows."""
        if not self.first or not self.last or self.last[1] <= self.first[1]:
            return 0.0
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
