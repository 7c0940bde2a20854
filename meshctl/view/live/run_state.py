"""What a run looks like at one moment: the fold over events and metrics that the dashboard and the summary
draw.

It knows nothing of time or of a terminal, so it gives the same picture of a run that goes on and of one read
back from disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshctl.plan.model import Plan
from meshctl.run.events import Event

State = Literal["waiting", "starting", "running", "done", "stopped", "failed"]
"""`stopped` is who was ended because of others."""
SHOWN = 8
"""How many metrics are shown where the recipe does not say which."""
KEPT = 512
"""How many points of a metric's course are kept; beyond, every second goes."""


@dataclass
class Spent:
    """Seconds of one thing that happens again and again."""

    total: float = 0.0
    times: int = 0
    recent: float = 0.0
    """Smoothed over about ten times."""

    def add(self, seconds: float) -> None:
        self.recent += (seconds - self.recent) / min(self.times + 1, 10)
        self.total += seconds
        self.times += 1

    @property
    def mean(self) -> float:
        return self.total / self.times if self.times else 0.0


@dataclass
class Course:
    """One metric over the steps."""

    first: float | None = None
    last: float | None = None
    points: list[float] = field(default_factory=list)
    """Thinned evenly as they get many."""
    _every: int = 1
    _seen: int = 0

    def add(self, value: float | None) -> None:
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None and self._seen % self._every == 0:
            self.points.append(value)
        self._seen += 1
        if len(self.points) > KEPT:
            self.points = self.points[::2]
            self._every *= 2


@dataclass
class GroupTally:
    workers: int
    states: dict[int, State] = field(default_factory=dict)
    stages: dict[str, Spent] = field(default_factory=dict)
    """A worker's seconds per stage, over all workers and steps."""
    step: Spent = field(default_factory=Spent)

    @property
    def state(self) -> State:
        """The worst news first; running when all are."""
        states = [self.states.get(rank, "waiting") for rank in range(self.workers)]
        for state in ("failed", "stopped", "waiting", "starting", "running"):
            if state in states:
                return "starting" if state == "waiting" and len(set(states)) > 1 else state
        return "done"

    @property
    def waits(self) -> float:
        """What a worker's step takes beyond its stages: waiting for others, moving batches."""
        return max(0.0, self.step.recent - sum(spent.recent for spent in self.stages.values()))

    @property
    def waits_mean(self) -> float:
        return max(
            0.0, self.step.mean - sum(spent.total for spent in self.stages.values()) / max(1, self.step.times)
        )


class Tally:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.groups = {group.name: GroupTally(group.workers) for group in plan.groups}
        self.routes: dict[str, int] = {route.name: 0 for route in plan.routes}
        """Bytes, over all workers and steps."""
        self.courses: dict[str, Course] = {}
        self.step = 0
        """The last complete one."""
        self.steps = plan.run.steps
        """How many there will be, as far as it is known: the data may have fewer. 0 where only a stop ends
        the run."""
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None
        """(step, time) of the first and the last line that was seen."""
        self._stopping = False
        self._programs = {group.name for group in plan.groups if group.program}

    def on_event(self, event: Event) -> None:
        if event.name in ("launched", "stopping"):
            self._stopping = event.name == "stopping"
        if event.name == "resumed" and event.step is not None:
            self.step = event.step
        if event.group not in self.groups or event.rank is None:
            return
        if event.name == "ready":
            self.steps = event.value.get("last") or self.steps
        group = self.groups[event.group]
        state = self._state_after(event, group.states.get(event.rank, "waiting"))
        if state:
            group.states[event.rank] = state
        elif event.name == "step":
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

    def _worked(self, group: GroupTally, value: Mapping[str, Any]) -> None:
        group.step.add(value.get("seconds", 0.0))
        for stage, seconds in value.get("stages", {}).items():
            group.stages.setdefault(stage, Spent()).add(seconds)
        for route, sent in value.get("routes", {}).items():
            self.routes[route] = self.routes.get(route, 0) + sent

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        """A step's line; the last one may come again, with more in it."""
        here = (int(metrics["step"]), float(metrics["time"]))
        again = self.last is not None and here[0] == self.last[0]
        self.first, self.last = self.first or here, here
        self.step = here[0]
        for name, value in metrics.items():
            if name in ("step", "time"):
                continue
            if again and name in self.courses:
                self.courses[name].last = value
            else:
                self.courses.setdefault(name, Course()).add(value)

    def shown(self) -> Iterator[tuple[str, Course]]:
        """The metrics that the recipe wants seen, or the first few there are; one that was not said yet is
        left out."""
        for name in self.plan.run.show or list(self.courses)[:SHOWN]:
            if name in self.courses:
                yield name, self.courses[name]

    @property
    def steps_per_second(self) -> float:
        """Between the first and the last line, so that the start of the run does not count; 0 where there are
        not two."""
        if not self.first or not self.last or self.last[1] <= self.first[1]:
            return 0.0
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
