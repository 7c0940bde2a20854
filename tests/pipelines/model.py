"""What a recipe must do, by docs/recipes.md alone: an interpreter of recipes in plain Python.

    expected = Model(recipe, seen).run()

It runs all groups in one loop, step by step and stage by stage, and notes for every worker which endpoints are
called with which samples. It uses nothing of meshctl. Two things are open to a run and are read from what was
`seen` in it: the step after which `self.stop` ends it, and how `balance: tokens` divides samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tests.pipelines.blocks import flat, unit_of, with_full_names
from tests.pipelines.calls import Called, Calls, Job, Worker
from tests.pipelines.flow import inputs_of
from tests.pipelines.judged import Best, Rows, WrongMetric, best_of, stopped
from tests.pipelines.shares import Fault
from tests.pipelines.sources import ENDLESS, Sources, Stages


@dataclass
class Saved:
    """A checkpoint."""

    step: int = 0
    given: dict[str, int] = field(default_factory=dict)
    """Source -> the number of samples that it has produced."""
    calls: dict[str, int] = field(default_factory=dict)
    """Component -> its state."""


@dataclass
class Expected:
    """What a run has to do."""

    last: int
    ended_by: frozenset[str]
    """The possible reasons of the end; one is empty for `run.steps`."""
    called: Mapping[Worker, Sequence[Called]]
    before_end: Mapping[Worker, int] | None
    """Worker -> the number of its calls before the step in which a stream ended unannounced."""
    may_begin: Set[tuple[str, str]]
    """The components and methods that may have been called in that step: those of the streams, and of what comes
    before them."""
    metrics: Rows
    rows: Rows
    """The metrics, and those before the checkpoint from which the run continues."""
    best: Sequence[Best]
    """The best checkpoints of this run."""
    saved: Sequence[Saved]
    may_fail: bool = False
    """Whether other stages fail in the step in which a stream ended: which of the two is seen first is open."""


class Model:
    def __init__(
        self,
        recipe: Mapping[str, Any],
        seen: Mapping[Worker, Sequence[Called]],
        stopped: int = ENDLESS,
        before: Rows = MappingProxyType({}),
    ) -> None:
        """`stopped` is the last step of the run where `self.stop` or `run.stop` may have ended it. `before` are
        the metrics of the steps up to the checkpoint from which the run continues."""
        self._run_keys, self._before = recipe["run"], dict(before)
        self._job, self._units = Job.of(recipe), in_order(with_full_names(recipe["pipeline"]))
        self._stages = dict(flat(self._units))
        self._steps = recipe["run"].get("steps", ENDLESS)
        self._checkpoint, self._stopped = recipe["run"].get("checkpoint"), stopped
        self._sources = Sources(self._units, recipe["components"], recipe["run"].get("epochs", 1))
        self._first = first_units(self._units, self._sources.unannounced)
        self._written = self._units
        """The stages and blocks in the order in which those that wait for an unannounced end run."""
        self._units = {name: self._units[name] for name in self._first} | self._units
        self._calls = Calls(self._job, self._stages, self._sources, seen)
        self._sent = {
            name: list[tuple[int, int]]() for name, stage in self._stages.items() if "sync" in stage
        }
        """Sync -> the steps and the weights that were sent and are not loaded."""
        self._held: dict[str, tuple[int, int]] = {}
        """Sync -> the step and the weights that were sent last."""
        self._ran, self._saves = set[str](), True
        """The stages and blocks of the last step, and whether it ended with a checkpoint."""
        self._saved: list[Saved] = []

    def run(self, start: Saved | None = None) -> Expected:
        """Runs the steps after a checkpoint."""
        first = step = start.step if start else 0
        if start:
            self._sources.given |= start.given
            self._job.calls |= start.calls
            for component in start.calls:
                for rank in self._job.meshes[component].ranks:
                    self._job.note(rank, Called(0, component, "resume", [start.calls[component]]))
        for name in self._sent:
            self._catch_up(name, step)
        last, reasons = self._planned_end(step)
        planned = min([self._steps, *self._sources.last_steps(step).values()])
        before_end, may_fail = None, False
        while step < last:
            if ended := self._sources.ended(step + 1):
                reasons = frozenset(map(data_ended, ended))
                may_fail = self._fails_without(set(ended), step + 1)
                before_end = {worker: len(calls) for worker, calls in self._job.called.items()}
                break
            step += 1
            self._step(step, is_last=step == last)
        if self._sources.are_open_ended:
            self._close(step, has_saved=self._saves or step == first)
        self._check_metrics(step)
        metrics = {step: row for step, row in self._job.metrics.items() if step > first}
        rows = {**self._before, **metrics}
        if step < planned and "stop" in self._run_keys and before_end is None:
            reasons = frozenset({stopped(self._run_keys["stop"], rows)})
        keys = self._checkpoint or {}
        best = best_of(keys["best"], [one.step for one in self._saved], rows) if "best" in keys else []
        may_begin = {tuple(stage["call"].split(".")) for stage in self._first_stages if "call" in stage}
        return Expected(
            step, reasons, self._job.called, before_end, may_begin, metrics, rows, best, self._saved, may_fail
        )

    @property
    def _first_stages(self) -> list[Mapping[str, Any]]:
        return [stage for _, stage in flat({name: self._units[name] for name in self._first})]

    def _planned_end(self, step: int) -> tuple[int, frozenset[str]]:
        """The last step as far as it is known before the first, and the possible reasons."""
        lasts = self._sources.last_steps(step)
        last = min([self._steps, *lasts.values()])
        reasons = frozenset(
            data_ended(name) for name in lasts if lasts[name] == last < self._steps
        ) or frozenset({""})
        if self._stopped < last:
            return self._stopped, frozenset({"enough"})
        return last, reasons | ({"enough"} if self._stopped == last else set())

    def _step(self, step: int, is_last: bool) -> None:
        self._calls.forget()
        self._job.metrics[step] = {}
        every = self._checkpoint["every"] if self._checkpoint else 0
        self._saves = self._checkpoint is not None and (is_last or (every > 0 and step % every == 0))
        is_end = is_last and not self._sources.are_open_ended
        times = {"start": step == 1, "checkpoint": self._saves, "end": is_end}
        self._ran = set()
        for name, stage in self._units.items():
            is_due = times[stage["when"]] if "when" in stage else step % stage.get("every", 1) == 0
            if is_due and self._ran.issuperset(taken(stage)):
                self._ran.add(name)
                self._run(name, step)
            elif "sync" in stage:
                self._load(name, step - lag(stage))
        self._check_metrics(step)
        if self._saves:
            self._save(step)

    def _check_metrics(self, step: int) -> None:
        if self._job.wrong and self._run_keys.get("on_nan", "stop") == "stop":
            raise WrongMetric(step, self._job.wrong)
        self._job.wrong.clear()

    def _fails_without(self, ended: set[str], step: int) -> bool:
        """Whether another stream, or what comes before one, fails in the step in which streams ended, or gives
        samples that cannot be divided for the stages that take them."""
        copy, gone = deepcopy(self), set(ended)
        copy._run_keys = {**copy._run_keys, "on_nan": "ignore"}
        copy._calls.seen = {}  # some workers have begun this step, others have not
        for name, stage in self._units.items():
            if name not in self._first or name in gone or taken(stage) & gone:
                gone.add(name)
                del copy._units[name]
        try:
            copy._step(step, is_last=False)
            for name, stage in self._units.items():
                if name not in copy._units and "call" in stage and self._is_due(stage, step):
                    copy._calls.divide_for(name, step)
        except Fault:
            return True
        return False

    def _is_due(self, stage: Mapping[str, Any], step: int) -> bool:
        """Whether a stage runs in a step of which it is not known that it is the last."""
        if "when" in stage:
            return step == 1 if stage["when"] == "start" else stage["when"] == "checkpoint" and self._saves
        return step % stage.get("every", 1) == 0

    def _close(self, step: int, has_saved: bool) -> None:
        """Runs the stages that wait for an end that was not announced, with the values of the last step."""
        saves = self._checkpoint is not None and not has_saved
        times = {"start": False, "checkpoint": saves, "end": True}
        late = set[str]()
        for name, stage in self._written.items():
            is_due = step % stage.get("every", 1) == 0 and not late.isdisjoint(taken(stage))
            if "when" in stage:
                is_due = times[stage["when"]]
            if is_due and name not in self._ran and (self._ran | late).issuperset(taken(stage)):
                late.add(name)
                self._run(name, step)
        if saves:
            self._save(step)

    def _run(self, name: str, step: int) -> None:
        stage = self._units[name]
        if "repeat" in stage:
            self._calls.run_block(stage, step)
        elif "sync" in stage:
            self._send(name, step)
            self._load(name, step - lag(stage))
        else:
            self._calls.run(name, step)

    # Weights and checkpoints

    def _send(self, name: str, step: int) -> None:
        self._held[name] = step, self._job.calls[self._stages[name]["sync"]]
        self._sent[name].append(self._held[name])

    def _load(self, name: str, until: int) -> None:
        """Loads the weights that were sent by the step `until`."""
        target = self._stages[name]["to"]
        while self._sent[name] and self._sent[name][0][0] <= until:
            step, weights = self._sent[name].pop(0)
            self._job.versions[target] = step
            for rank in self._job.meshes[target].ranks:
                self._job.note(rank, Called(step, target, "load", [weights]))

    def _catch_up(self, name: str, step: int) -> None:
        """At a cut, who receives weights has those of the end of its step."""
        if self._held.get(name) != (step, self._job.calls[self._stages[name]["sync"]]):
            self._send(name, step)
        self._load(name, step)

    def _save(self, step: int) -> None:
        for name in self._sent:
            self._catch_up(name, step)
        trainers = [n for n, c in self._job.components.items() if c["_target_"].endswith("Trainer")]
        states = {name: self._job.calls[name] for name in trainers}
        self._saved.append(Saved(step, dict(self._sources.given), states))


def data_ended(source: str) -> str:
    return f"the data of `{source}` ended"


def lag(sync: Mapping[str, Any]) -> int:
    """How many steps after it was sent a version is loaded."""
    late = sync.get("every", 1) - 1
    return int(sync.get("max_staleness", late) - late)


def taken(unit: Mapping[str, Any]) -> set[str]:
    """The stages and blocks whose values a stage or a block takes."""
    if "repeat" not in unit:
        return set(map(unit_of, named(unit)))
    inside = unit["stages"]
    found = set().union(*(named(stage) for stage in inside.values()), {unit["repeat"].get("over", "")})
    return set(map(unit_of, found - set(inside) - {""}))


def named(stage: Mapping[str, Any]) -> set[str]:
    """The stages whose values a stage takes, by their full names."""
    return {name for given in inputs_of(stage) for name in given.stages}


def first_units(units: Stages, streams: Sequence[str]) -> list[str]:
    """The stages and blocks that come first in a step which a stream may end: the streams, each after what was
    written before it and uses its component, or is needed by such a stage."""
    left, first = dict(units), list[str]()
    for stream in streams:
        components, values, found = components_of(left[stream]), set[str](), [stream]
        for name in reversed(list(left)[: list(left).index(stream)]):
            if name in values or components & components_of(left[name]):
                components |= components_of(left[name])
                values |= taken(left[name])
                found.insert(0, name)
        first += found
        left = {name: unit for name, unit in left.items() if name not in found}
    return first


def components_of(unit: Mapping[str, Any]) -> set[str]:
    """The components that a stage or a block uses."""
    stages = unit["stages"].values() if "repeat" in unit else [unit]
    called = {stage["call"].split(".")[0] for stage in stages if "call" in stage}
    return called | {stage[key] for stage in stages for key in ("sync", "to") if key in stage}


def in_order(
    pipeline: Stages, inputs: Callable[[Mapping[str, Any]], set[str]] = taken
) -> dict[str, Mapping[str, Any]]:
    """The stages and blocks in written order, except that each comes after those that it takes or names in
    `after`. So do the stages inside a block."""
    left, placed = dict(pipeline), dict[str, Mapping[str, Any]]()
    while left:
        after = {name: inputs(unit) | set(unit.get("after", [])) for name, unit in left.items()}
        name = next(name for name in left if after[name].isdisjoint(left))
        unit = left.pop(name)
        placed[name] = {**unit, "stages": in_order(unit["stages"], named)} if "repeat" in unit else unit
    return placed
