"""Runs a recipe in the threads of this process, and notes what happened."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshctl.diagnostics import Report
from meshctl.engines.supervise.judge import Judge
from meshctl.plan.model import Cluster, Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import load
from meshctl.run.metrics import Fold
from meshctl.run.settings import end_of_data
from meshctl.run.shutdown import StopRequest
from meshctl.runtime.component import Component
from meshctl.runtime.instantiate import make
from meshctl.runtime.transports.errors import PeerLost
from tests.paths import ROOT
from tests.pipelines.calls import Called, Worker
from tests.pipelines.judged import Best, Rows
from tests.pipelines.model import Saved
from tests.pipelines.parts import Trainer
from tests.runtime import in_process


@dataclass
class Ran:
    """What happened in a run."""

    fault: str = ""
    """Why it failed; empty for a run that did not."""
    last: int = 0
    ended_by: str = ""
    """The reason of the end; empty for `run.steps`."""
    seen: Mapping[Worker, Sequence[Called]] = field(default_factory=dict)
    metrics: Rows = field(default_factory=dict)
    best: Sequence[Best] = ()
    """The best checkpoints, with `run.checkpoint.best`."""
    saved: Sequence[Saved] = ()
    keeps: int = 0
    """The number of newest checkpoints that are kept; 0 for all of them."""
    folder: Path | None = None
    """The folder of a run in processes."""


def read(recipe: Mapping[str, Any], file: Path) -> tuple[Plan | None, Report]:
    """Returns the plan of a recipe, None for one that is refused, and what was found."""
    file.write_text(dump(recipe), encoding="utf-8")
    loaded = load(file, [], ROOT, environ={}, path=[str(ROOT)])
    return None if loaded.report.errors else resolve(loaded.recipe, loaded.endpoints), loaded.report


class Supervisor:
    """Judges the metrics of a run in memory, as the head does."""

    def __init__(self, plan: Plan, start: int, before: Rows) -> None:
        """`before` are the metrics of the steps up to the step `start`, from which the run continues."""
        workers = {group.name: group.workers for group in plan.groups}
        self._fold = Fold(workers, since=0.0, after=start)
        self._count = 0
        self.judge = Judge(plan.run, [{"step": step} | dict(row) for step, row in before.items()])
        self.rows: dict[int, dict[str, float | None]] = {}

    def ask(self, outcome: in_process.Outcome) -> StopRequest | None:
        """Judges what has happened since the last call. Returns a request for the end, if there is one."""
        events = outcome.events[self._count :]
        self._count += len(events)
        for event in events:
            for row in self._fold.add(event):
                self.judge.add(row, self._fold.not_finite())
                values = {key: value for key, value in row.items() if key not in ("step", "time")}
                self.rows[row["step"]] = values
        reason = self.judge.fault or self.judge.stop
        return StopRequest(reason, has_failed=bool(self.judge.fault)) if reason else None

    def reason(self, outcome: in_process.Outcome, last: int) -> str:
        """The reason of the end, as the summary has it."""
        ready = [event.value for event in outcome.events if event.name == "ready"]
        [source] = {value["source"] for value in ready}
        is_early = all(value["last"] is None or last < value["last"] for value in ready)
        if self.judge.stop and is_early:
            return self.judge.stop
        asked = "" if outcome.reason == self.judge.stop else outcome.reason
        return asked or (end_of_data(source) if source else "")


def in_threads(
    plan: Plan, start: Saved | None = None, before: Rows = MappingProxyType({}), nodes: int = 0
) -> Ran:
    """Runs a plan, from a checkpoint if there is one. `before` are the metrics up to the checkpoint. With `nodes`,
    frames travel over the sockets of so many nodes; without, they stay in memory."""
    if nodes:
        plan = replace(plan, cluster=Cluster(nodes=nodes))
    own = threading.local()
    """The components of a worker, in its thread."""
    records: list[Any] = []
    saved: dict[int, Saved] = {}
    together: Counter[tuple[str, int]] = Counter()
    """Group and step -> how many of its workers have come to the collective call that saves."""
    meeting, has_fault = threading.Condition(), threading.Event()
    workers: Counter[int] = Counter()
    """Step -> how many workers have saved it."""

    def made(name: str, rank: int) -> Component:
        methods = [s.method for s in plan.stages if s.kind == "call" and s.component == name]
        component = make(plan.component(name), methods, [str(ROOT)])
        component.seen = records
        own.__dict__.setdefault("components", {})[name] = component
        return component

    def meet(group: str, step: int) -> None:
        with meeting:
            together[group, step] += 1
            meeting.notify_all()
            meeting.wait_for(lambda: has_fault.is_set() or together[group, step] == plan.group(group).workers)
        if has_fault.is_set():
            raise PeerLost("a worker has a fault")

    def on_fault() -> None:
        has_fault.set()
        with meeting:
            meeting.notify_all()

    def save(step: int, given: Mapping[str, int], takes: object) -> None:
        meet(plan.component(next(iter(own.components))).group, step)
        checkpoint = saved.setdefault(step, Saved(step))
        workers[step] += 1
        for name, component in own.components.items():
            if component.rank == 0:
                sources = [stage.name for stage in plan.sources if stage.component == name]
                checkpoint.given.update({source: given[source] for source in sources})
                if isinstance(component, Trainer):
                    checkpoint.calls[name] = int(component.state_dict()["calls"])

    def resume(components: Mapping[str, Component]) -> None:
        for name, calls in start.calls.items() if start else ():
            if name in components:
                components[name].load_state_dict({"calls": calls})

    position = (start.step, start.given) if start else (0, {})
    supervisor = Supervisor(plan, position[0], before)
    outcome = in_process.run(
        plan,
        made,
        save=save,
        start=position[0],
        given=position[1],
        on_setup=resume,
        ask=supervisor.ask,
        on_fault=on_fault,
        over_sockets=bool(nodes),
    )
    supervisor.ask(outcome)
    faults = [*filter(None, [supervisor.judge.fault]), *map(repr, outcome.faults.values())]
    if faults:
        return Ran(fault=" | ".join(dict.fromkeys(faults)), seen=by_worker(records, plan))
    [last] = set(outcome.last.values())
    checkpoints = [saved[step] for step in sorted(saved) if workers[step] == plan.job_size]
    best = supervisor.judge.best([one.step for one in checkpoints])
    return Ran(
        "",
        last,
        supervisor.reason(outcome, last),
        by_worker(records, plan),
        supervisor.rows,
        [(one.step, one.value, one.value_step) for one in best],
        checkpoints,
    )


def by_worker(records: Sequence[Any], plan: Plan) -> dict[Worker, list[Called]]:
    """The records of each worker, in their order."""
    found: dict[Worker, list[Called]] = {}
    for component, rank, step, method, arguments in records:
        worker = plan.component(component).group, rank
        found.setdefault(worker, []).append(Called(step, component, method, arguments))
    return found
