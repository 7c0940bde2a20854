"""Run directories that are written as workers and the launcher write them, of any size and with any names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from meshctl.plan.model import Cluster, Plan, Run
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.events import Event
from meshctl.run.metrics import as_json
from meshctl.view.live.seen_run import SeenRun
from tests.view.pictures import plans

BEGAN = 1_700_000_000.0
STEP_S = 0.5


def plan(workers: int = 2, name: str = "arithmetic", stages: Sequence[str] = ("rollouts", "update")) -> Plan:
    """Returns a plan of two groups, in which the first stage feeds the second one."""
    groups = [plans.group(each, "cpu", workers) for each in ("rollout", "train")]
    components = [plans.component("sampler", groups[0]), plans.component("actor", groups[1])]
    first, second = stages
    calls = [
        plans.call(first, "sampler.sample", samples=8),
        plans.call(second, "actor.update", first, collect="mean"),
    ]
    return replace(plans.plan(name, Cluster(), groups, components, calls), run=Run(steps=100))


@dataclass
class MadeRun:
    path: Path
    plan: Plan = field(default_factory=plan)
    recipe: str = "name: arithmetic\nrun: {steps: 100}\n"

    def __post_init__(self) -> None:
        self.run = RunDir(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.run.plan, self.plan.to_json())
        write_whole(self.run.recipe, self.recipe)
        self.run.write_start(Start(()))

    def write(self, who: str, *events: Event) -> None:
        """Appends events to the file of a process."""
        path = self.run.journal(who)
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(event), separators=(",", ":")) + "\n" for event in events)

    def launcher(self, name: str, at: float, step: int | None = None, **value: Any) -> None:
        self.write("launcher", Event(name, step=step, value=value, time=BEGAN + at))

    def worker(self, name: str, group: str, rank: int, at: float, **given: Any) -> None:
        event = Event(name, group, rank, time=BEGAN + at)
        self.write(f"{group}-{rank}", replace(event, **given))

    def steps(self, first: int, last: int, metrics: Mapping[str, Sequence[float | None]] = {}) -> None:
        """Writes the steps of all workers and their rows."""
        names = [stage.name for stage in self.plan.stages]
        for number, group in enumerate(self.plan.groups):
            for rank in range(group.workers):
                lines = [self._step(group.name, rank, step, names[number]) for step in range(first, last + 1)]
                self.write(f"{group.name}-{rank}", *lines)
        with self.run.metrics.open("a", encoding="utf-8") as file:
            for step in range(first, last + 1):
                values = {name: course[step - first] for name, course in metrics.items()}
                file.write(as_json({"step": step, "time": step * STEP_S, **values}))

    def _step(self, group: str, rank: int, step: int, stage: str) -> Event:
        value = {"seconds": STEP_S, "stages": {stage: 0.3}, "waits": {stage: 0.1}, "routes": {}}
        return Event("step", group, rank, step, value=value, time=BEGAN + step * STEP_S)

    @property
    def seen(self) -> SeenRun:
        return SeenRun.of(self.run, self.plan)


def done(path: Path, steps: int = 12, **given: Any) -> MadeRun:
    """A run that has ended well, with a metric of which one value was not finite."""
    made = MadeRun(path, **given)
    made.launcher("launched", 0.0, attempt=0)
    loss: list[float | None] = [2 / step for step in range(1, steps + 1)]
    loss[min(5, steps - 1)] = None
    made.steps(1, steps, {"update.loss": loss, "update.lr": [0.001] * steps})
    made.launcher("checkpoint", steps * STEP_S, step=steps, path=f"checkpoints/step-{steps}")
    made.launcher("over", steps * STEP_S + 0.1, code=0, reason="")
    made.run.checkpoint(steps).mkdir(parents=True)
    made.run.publish_checkpoint(steps)
    return made


def failed(path: Path, **given: Any) -> MadeRun:
    """A run that was restarted after a failure, has lost two steps, and has failed again."""
    made = MadeRun(path, **given)
    made.launcher("launched", 0.0, attempt=0)
    made.steps(1, 6, {"update.loss": [1.0] * 6})
    made.launcher("restarted", 3.2, step=4, attempt=1, cause="train:1 failed: killed by SIGKILL", left=0)
    made.launcher("launched", 3.3, attempt=1)
    made.launcher("resumed", 3.3, step=4, path="checkpoints/step-4")
    text = "Traceback (most recent call last):\nValueError: token=hf_abcdefghijklmnopqrstuvwxyz\n"
    value: dict[str, Any] = {"error": "ValueError: boom", "traceback": text}
    made.worker("fault", "train", 1, 3.9, step=5, stage="update", value=value)
    value = {"error": "train:1 is gone", "traceback": "", "lost": True}
    made.worker("fault", "train", 0, 4.0, step=5, value=value)
    made.launcher("warning", 4.0, text="the run does not start again")
    made.launcher("over", 4.1, code=5, reason="train:1 failed in stage update, step 5: ValueError: boom")
    log = made.run.log("train", 1)
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00.000Z the last words\n")
    return made


def resized(path: Path) -> MadeRun:
    """A run that goes on with one of two workers of `train`, and in which `rollout` restarts alone."""
    made = MadeRun(path)
    whole = {"rollout": 2, "train": 2}
    made.launcher("launched", 0.0, attempt=0, workers=whole)
    made.steps(1, 6, {"update.loss": [1.0] * 6})
    cause = "rollout:1 failed in stage rollouts, step 3: killed by SIGKILL"
    made.launcher("restarted", 1.2, step=2, attempt=0, cause=cause, left=2, group="rollout", generation=1)
    cause = "train:1 failed: killed by SIGKILL"
    made.launcher("restarted", 3.2, step=4, attempt=1, cause=cause, left=1, sizes={"train": [2, 1]})
    made.launcher("launched", 3.3, attempt=1, workers=whole | {"train": 1})
    made.launcher("resumed", 3.3, step=4, path="checkpoints/step-4")
    return made
