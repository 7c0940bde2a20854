"""A recorded run of two groups over twelve steps, with the events of its workers and its launcher."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from meshctl.plan.model import Cluster, Plan, Run
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event, Journal
from meshctl.run.metrics import Fold, as_json
from tests.view.pictures import plans

BEGAN = 1000.0
STEPS = 12
ROUTE = "rollouts -> metrics"


def make_plan(steps: int = STEPS, show: tuple[str, ...] = ("exam.reward", "metrics.loss")) -> Plan:
    rollout, train = plans.group("rollout", "cpu", 2), plans.group("train", "cpu", 2)
    stages = [
        plans.call("rollouts", "sampler.sample", samples=8),
        plans.call("metrics", "actor.update", "rollouts", collect="mean"),
        plans.call("exam", "sampler.exam", collect="mean"),
    ]
    components = [plans.component("sampler", rollout), plans.component("actor", train)]
    made = plans.plan("arithmetic", Cluster(), [rollout, train], components, stages)
    return replace(made, run=Run(steps=steps, show=show))


def step_events(step: int) -> Iterator[Event]:
    """Returns the events of one step of all four workers. The exam runs in every third step."""
    now = BEGAN + 2 + 0.25 * step
    exam = {"values": {"reward": min(1.0, step / 10)}, "weight": 4}
    update = {"values": {"loss": math.nan if step == 7 else 2 / step, "lr": 0.001}, "weight": 4}
    stages = {"rollouts": 0.06, **({"exam": 0.004} if step % 3 == 0 else {})}
    rolled = {"seconds": 0.25, "stages": stages, "routes": {ROUTE: 1500}, "waits": dict.fromkeys(stages, 0.0)}
    rolled |= {"sends": {"rollouts": 0.185}, "full": {ROUTE: 0.18}, "peers": {ROUTE: 0.001}}
    trained = {"seconds": 0.25, "stages": {"metrics": 0.18}, "waits": {"metrics": 0.065}}
    trained |= {"awaited": {ROUTE: 0.001}, "routes": {}}
    for rank in (0, 1):
        if step % 3 == 0:
            yield Event("metric", "rollout", rank, step, "exam", exam, now)
        yield Event("step", "rollout", rank, step, value=rolled, time=now)
    for rank in (0, 1):
        yield Event("metric", "train", rank, step, "metrics", update, now)
        yield Event("step", "train", rank, step, value=trained, time=now)


WORKERS = [(group, rank) for group in ("rollout", "train") for rank in (0, 1)]


def begin() -> Iterator[Event]:
    yield Event("launched", time=BEGAN)
    for number, (group, rank) in enumerate(WORKERS):
        yield Event("started", group, rank, value={"pid": 100 + number % 2}, time=BEGAN + 0.5)
    for group, rank in WORKERS:
        yield Event("ready", group, rank, time=BEGAN + 1.5)


def end() -> Iterator[Event]:
    yield Event("checkpoint", step=STEPS, value={"path": "checkpoints/step-12"}, time=BEGAN + 5.5)
    for group, rank in WORKERS:
        yield Event("done", group, rank, time=BEGAN + 6)
        yield Event("exited", group, rank, value={"pid": 100 + rank, "code": 0}, time=BEGAN + 6)
    yield Event("over", value={"code": 0, "reason": ""}, time=BEGAN + 6.5)


class Watcher(Protocol):
    def on_event(self, event: Event) -> None: ...
    def on_row(self, metrics: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Recorded:
    plan: Plan
    events: Sequence[Event]

    def feed(self, view: Watcher, steps: int = STEPS) -> None:
        """Calls observers as the launcher does, with every event and every complete row, to the end of
        `steps`."""
        folding = Fold({"rollout": 2, "train": 2}, since=BEGAN)
        for event in self.events:
            if steps < STEPS and (event.step or 0) > steps:
                break
            view.on_event(event)
            for line in folding.add(event):
                view.on_row(line)

    def write(self, run: RunDir) -> None:
        folding, rows = Fold({"rollout": 2, "train": 2}, since=BEGAN), list[str]()
        journals: dict[tuple[str, int | None], Journal] = {}
        for event in self.events:
            who = (event.group, event.rank)
            if who not in journals:
                path = run.journal(f"{event.group or 'launcher'}-{event.rank}")
                journals[who] = Journal(path, event.group, event.rank)
            journals[who].write(event.name, step=event.step, stage=event.stage, **event.value)
            for line in folding.add(event):
                rows.append(as_json(line))
        write_whole(run.metrics, "".join(rows))
        for journal in journals.values():
            journal.close()


def whole_run() -> Recorded:
    steps = [event for step in range(1, STEPS + 1) for event in step_events(step)]
    return Recorded(make_plan(), [*begin(), *steps, *end()])
