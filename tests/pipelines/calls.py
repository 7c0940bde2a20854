"""One call of a stage, for the model: what each rank is called with, and what the stage's value is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from tests.pipelines.behaviours import DEFAULT_COLLECT, Result, call
from tests.pipelines.flow import Consumer, Part, aligned, inputs_of, is_batch, joined, producers, reduced
from tests.pipelines.shares import Id, Mesh, Rows, Sample
from tests.pipelines.sources import Sources, Stages, is_source

Worker = tuple[str, int]
"""Group and rank."""
FIRST = ("first", "last_pp_first")


@dataclass(frozen=True)
class Called:
    """A call of an endpoint, or weights or a state that were loaded."""

    step: int
    component: str
    method: str
    arguments: list[Any]

    @property
    def key(self) -> tuple[int, str, str]:
        return self.step, self.component, self.method


@dataclass
class Job:
    """The workers of a recipe, and what they have done."""

    components: Mapping[str, Mapping[str, Any]]
    meshes: Mapping[str, Mesh]
    called: dict[Worker, list[Called]]
    calls: dict[str, int]
    """Component -> the number of its calls."""
    versions: dict[str, int] = field(default_factory=dict)
    """Component -> the step of the weights that it has loaded."""
    metrics: dict[int, dict[str, float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Job:
        sizes = {name: group["ranks"] for name, group in recipe["groups"].items()}
        components = recipe["components"]
        meshes = {name: Mesh(sizes[c["group"]], c.get("parallel", {})) for name, c in components.items()}
        workers: dict[Worker, list[Called]] = {
            (group, rank): [] for group in sizes for rank in range(sizes[group])
        }
        return cls(components, meshes, workers, dict.fromkeys(components, 0))

    def note(self, rank: int, called: Called) -> None:
        self.called[self.components[called.component]["group"], rank].append(called)


class Calls:
    def __init__(
        self, job: Job, stages: Stages, sources: Sources, seen: Mapping[Worker, Sequence[Called]]
    ) -> None:
        self._job, self._stages, self._sources, self._seen = job, stages, sources, seen
        self._values: dict[str, list[Part]] = {}
        """Stage -> its value in this step, by producer."""
        self._homes: dict[str, dict[Id, int]] = {}
        """Stage -> sample -> the data rank that made it."""
        for name, stage in stages.items():
            for given in inputs_of(stage)[:1]:
                self._consumer(name).check_peers(len(self._producers(given.stages[0])), given.dispatch)

    def run(self, name: str, step: int) -> None:
        """Calls a stage's endpoint on its ranks."""
        component, method = self._stages[name]["call"].split(".")
        mesh, collect = self._job.meshes[component], self._collect(name)
        giving = self._producers(name)
        results, weights = dict[int, Result](), dict[int, float]()
        if is_source(self._stages[name]):
            for rank, (numbers, rows) in self._sources.next(name, giving).items():
                results[rank] = Result(rows, [[numbers.start, numbers.stop]])
                weights[rank] = 1.0
        else:
            received = self._arguments(name, step)
            most = max(count(arguments) or 0 for arguments in received.values())
            keep = self._job.components[component]["args"].get("keep", 1)
            for rank, arguments in received.items():
                results[rank] = call(method, arguments, most, keep)
                samples = count(arguments)
                weights[rank] = 1.0 if samples is None else samples
        for rank, result in results.items():
            self._job.note(rank, Called(step, component, method, result.recorded))
        self._job.calls[component] += 1
        self._values[name] = [Part(self._versioned(component, results[r].value), weights[r]) for r in giving]
        self._homes[name] = {
            id: mesh.data_ranks[rank]
            for rank, part in zip(giving, self._values[name], strict=True)
            if isinstance(part.value, Rows)
            for id in part.value.ids
        }
        representatives = [0] if self._execute(name) == "first" else mesh.representatives
        logged = [Part(results[rank].logged, weights[rank]) for rank in representatives if rank in results]
        self._report(name, step, collect, [p for p in self._values[name] if isinstance(p.value, dict)])
        self._report(name, step, "mean", logged)

    def forget(self) -> None:
        """Begins a step."""
        self._values, self._homes = {}, {}

    def _collect(self, name: str) -> str:
        stage = self._stages[name]
        return str(stage.get("collect", DEFAULT_COLLECT.get(stage["call"].split(".")[1], "flatten")))

    def _producers(self, name: str) -> list[int]:
        mesh = self._job.meshes[self._stages[name]["call"].split(".")[0]]
        return producers(mesh, self._collect(name), self._execute(name))

    def _consumer(self, name: str, step: int = 0) -> Consumer:
        component, method = self._stages[name]["call"].split(".")
        found = partial(self._found, step, component, method)
        return Consumer(self._job.meshes[component], self._execute(name), found)

    def _execute(self, name: str) -> str:
        return str(self._stages[name].get("execute", "all"))

    def _versioned(self, component: str, value: Any) -> Any:
        version = self._job.versions.get(component)
        if version is None or not isinstance(value, Rows):
            return value
        return value.of([Sample(id, version) for id in value.ids])

    def _report(self, name: str, step: int, collect: str, parts: Sequence[Part]) -> None:
        """Every number of a stage is a metric, whoever takes it."""
        parts = [part for part in parts if part.value]
        if not parts:
            return
        values: dict[str, float] = parts[0].value
        if collect not in FIRST:
            values = reduced("sum" if collect == "sum" else "mean", parts)
        if collect not in ("sum", *FIRST) and not any(part.weight for part in parts):
            values = dict.fromkeys(values, math.nan)  # the mean over no samples
        known = self._job.metrics.setdefault(step, {})
        known |= {f"{name}.{key}": value if math.isfinite(value) else None for key, value in values.items()}

    # Inputs

    def _arguments(self, name: str, step: int) -> dict[int, list[Any]]:
        """Rank -> the arguments of its call. The first batch gives order and shares to the others."""
        consumer = self._consumer(name, step)
        received: dict[int, list[Any]] = {rank: [] for rank in consumer.ranks}
        lead: dict[int, Rows] | None = None
        is_cut = False
        for number, given in enumerate(inputs_of(self._stages[name])):
            cuts = consumer.execute != "first" and given.dispatch["mode"] != "all"
            columns: list[dict[int, Any]] = []
            for source in given.stages:
                collect, every = self._collect(source), self._values[source]
                if not is_batch(collect, every):
                    senders = {rank: consumer.senders(rank, len(every)) for rank in consumer.ranks}
                    columns.append({r: joined(collect, [every[i] for i in senders[r]]) for r in senders})
                elif lead is None:
                    homes = self._homes.get(given.dispatch.get("home", ""), {})
                    parts = [part.value for part in self._values[source]]
                    lead, is_cut = consumer.receive(number, parts, given.dispatch, homes), cuts
                    columns.append(dict(lead))
                elif is_cut and not cuts:
                    columns.append(dict.fromkeys(consumer.ranks, joined(collect, every)))
                else:
                    columns.append(dict(aligned(joined(collect, every), lead)))
            for rank in consumer.ranks:
                received[rank].append(with_columns([column[rank] for column in columns]))
        return received

    def _found(self, step: int, component: str, method: str, rank: int, number: int) -> list[Id] | None:
        """The ids that a call received in the run as the parameter `number`."""
        worker = self._job.components[component]["group"], rank
        key = step, component, method
        number_of_call = sum(one.key == key for one in self._job.called[worker])
        called = next(
            islice((one for one in self._seen.get(worker, ()) if one.key == key), number_of_call, None), None
        )
        batch = called.arguments[number] if called and number < len(called.arguments) else None
        return list(map(tuple, batch["ids"])) if isinstance(batch, dict) and "ids" in batch else None


def count(arguments: Sequence[Any]) -> int | None:
    """The number of samples of the first batch, None without one."""
    return next((len(argument.samples) for argument in arguments if isinstance(argument, Rows)), None)


def with_columns(values: Sequence[Any]) -> Any:
    """One parameter's value: the columns of several batches of the same samples."""
    first, *others = values
    for other in others:
        versions = [one.version if one.version is not None else two.version
                    for one, two in zip(first.samples, other.samples, strict=True)]  # fmt: skip
        first = first.of([Sample(id, version) for id, version in zip(first.ids, versions, strict=True)])
    return first
