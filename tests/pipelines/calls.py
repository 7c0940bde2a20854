"""One call of a stage, for the model: what each rank is called with, and what the stage's value is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from tests.pipelines.behaviours import DEFAULT_COLLECT, Result, call
from tests.pipelines.blocks import groups_of, minibatch, of_all_passes, taken_from, unit_of
from tests.pipelines.flow import (
    Consumer,
    Dispatch,
    Part,
    aligned,
    inputs_of,
    is_batch,
    joined,
    producers,
    reduced,
)
from tests.pipelines.shares import Fault, Id, Mesh, Rows, Sample
from tests.pipelines.sources import Given, Sources, Stages, is_source, passes_of

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
    wrong: set[str] = field(default_factory=set)
    """The metrics that are not finite, although they are of samples."""

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


@dataclass
class Numbers:
    """The metrics of a stage in its calls of one step."""

    returned: list[Part] = field(default_factory=list)
    logged: list[Part] = field(default_factory=list)


class Calls:
    def __init__(
        self, job: Job, stages: Stages, sources: Sources, seen: Mapping[Worker, Sequence[Called]]
    ) -> None:
        self._job, self._stages, self._sources = job, stages, sources
        self.seen = seen
        self._values: dict[str, list[Part]] = {}
        """Stage -> its value in this step, by producer."""
        self._homes: dict[str, dict[Id, int]] = {}
        """Stage -> sample -> the data rank that made it."""
        self._minibatch: set[Id] | None = None
        """The ids of the minibatch of a pass, to which batches from outside of a block are cut."""
        for name, stage in stages.items():
            for given in inputs_of(stage)[:1]:
                self._consumer(name).check_peers(len(self._producers(given.stages[0])), given.dispatch)

    def run(self, name: str, step: int) -> None:
        """Calls a stage's endpoint on its ranks."""
        is_first = is_source(self._stages[name])
        given = self._sources.next(name, self._producers(name)) if is_first else None
        numbers = Numbers()
        self._call(name, step, given, numbers)
        self._report(name, step, self._collect(name), numbers.returned)
        self._report(name, step, "mean", numbers.logged)

    def divide_for(self, name: str, step: int) -> None:
        """Divides the first batch that a stage takes, without calling it. Nothing is known of a batch of a stage
        that did not run."""
        for number, given in enumerate(inputs_of(self._stages[name])):
            source = given.stages[0]
            every = self._values.get(source)
            if every is None:
                return
            if is_batch(self._collect(source), every):
                homes = self._homes.get(given.dispatch.get("home", ""), {})
                self._received(self._consumer(name, step), number, source, every, given.dispatch, homes)
                return

    def _call(self, name: str, step: int, given: Given | None, numbers: Numbers) -> None:
        """`given` are the samples of a source."""
        component, method = self._stages[name]["call"].split(".")
        results, weights = dict[int, Result](), dict[int, float]()
        if given is not None:
            for rank, (called_with, rows) in given.items():
                results[rank] = Result(rows, [[called_with.start, called_with.stop]])
                weights[rank] = 1.0
        else:
            received = self._arguments(name, step)
            most = max(count(arguments) or 0 for arguments in received.values())
            args = self._job.components[component]["args"]
            keep, is_nan = args.get("keep", 1), args.get("nan_at") == step
            for rank, arguments in received.items():
                results[rank] = call(method, arguments, most, keep, is_nan)
                samples = count(arguments)
                weights[rank] = 1.0 if samples is None else samples
        for rank, result in results.items():
            is_called = given is None or bool(given[rank][0]) or "block" not in self._stages[name]
            if is_called:  # in a block, a source is not called for an empty share
                self._job.note(rank, Called(step, component, method, result.recorded))
        self._job.calls[component] += 1
        giving, mesh = self._producers(name), self._job.meshes[component]
        self._values[name] = [Part(self._versioned(component, results[r].value), weights[r]) for r in giving]
        self._homes[name] = {
            id: mesh.data_ranks[rank]
            for rank, part in zip(giving, self._values[name], strict=True)
            if isinstance(part.value, Rows)
            for id in part.value.ids
        }
        representatives = [0] if self._execute(name) == "first" else mesh.representatives
        numbers.returned += [part for part in self._values[name] if isinstance(part.value, dict)]
        numbers.logged += [Part(results[r].logged, weights[r]) for r in representatives if r in results]

    # Blocks

    def run_block(self, block: Mapping[str, Any], step: int) -> None:
        """Runs all passes of a block."""
        repeat, stages = block["repeat"], block["stages"]
        numbers = {name: Numbers() for name in stages}
        for _ in range(repeat.get("times", 1)):
            values: dict[str, list[list[Part]]] = {name: [] for name in stages}
            until = repeat.get("until", "")
            for _ in self._passes_until(until, step) if until else self._minibatches(block, step):
                for name in stages:
                    if name != until:
                        self._call(name, step, None, numbers[name])
                    values[name].append(self._values[name])
            if not values[next(iter(stages))]:
                raise Fault("the source of a block has no samples")
        for name in stages:
            by_producer = zip(*values[name], strict=True)
            self._values[name] = [of_all_passes(self._collect(name), passes) for passes in by_producer]
            collect = "sum" if self._collect(name) == "sum" else "mean"
            self._report(name, step, collect, numbers[name].returned)
            self._report(name, step, "mean", numbers[name].logged)

    def _passes_until(self, name: str, step: int) -> Iterator[None]:
        """Calls the source of a block until it gives no samples."""
        for given in passes_of(self._stages[name], self._job.components, self._producers(name)):
            self._call(name, step, given, Numbers())
            if not any(rows.samples for _, rows in given.values()):
                return
            yield

    def _minibatches(self, block: Mapping[str, Any], step: int) -> Iterator[None]:
        """Takes the minibatches of a round."""
        over, lead = block["repeat"]["over"], next(iter(block["stages"]))
        left = groups_of(self._values[over])
        is_first = True
        while left or is_first:
            is_first = False
            found = self._found_minibatch(lead, over, step)
            self._minibatch = taken_from(left, block["repeat"]["size"], found)
            yield
        self._minibatch = None

    def _found_minibatch(self, lead: str, over: str, step: int) -> set[Id] | None:
        """The ids that the next call of the first stage of a block receives in the run, over all of its ranks."""
        consumer = self._consumer(lead, step)
        places = [number for number, one in enumerate(inputs_of(self._stages[lead])) if over in one.stages]
        found = [consumer.found(rank, places[0]) for rank in consumer.ranks]
        known = [ids for ids in found if ids is not None]
        return {id for ids in known for id in ids} if len(known) == len(found) else None

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
        counted = [part for part in parts if collect == "sum" or part.weight]
        self._job.wrong |= {
            f"{name}.{key}" for part in counted for key, one in part.value.items() if not math.isfinite(one)
        }
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
                collect, every = self._collect(source), self._seen_by(name, source)
                if not is_batch(collect, every):
                    senders = {rank: consumer.senders(rank, len(every)) for rank in consumer.ranks}
                    columns.append({r: joined(collect, [every[i] for i in senders[r]]) for r in senders})
                elif lead is None:
                    homes = self._homes.get(given.dispatch.get("home", ""), {})
                    is_cut = cuts
                    lead = self._received(consumer, number, source, every, given.dispatch, homes)
                    columns.append(dict(lead))
                elif is_cut and not cuts:
                    columns.append(dict.fromkeys(consumer.ranks, joined(collect, every)))
                else:
                    columns.append(dict(aligned(joined(collect, every), lead)))
            for rank in consumer.ranks:
                received[rank].append(with_columns([column[rank] for column in columns]))
        return received

    def _seen_by(self, name: str, source: str) -> list[Part]:
        """The value of a stage for another one: in a block, the minibatch of what comes from outside."""
        every, is_outside = self._values[source], unit_of(source) != unit_of(name)
        if self._minibatch is None or not is_outside or not is_batch(self._collect(source), every):
            return every
        return minibatch(every, self._minibatch)

    def _received(
        self,
        consumer: Consumer,
        number: int,
        source: str,
        every: Sequence[Part],
        dispatch: Dispatch,
        homes: Mapping[Id, int],
    ) -> dict[int, Rows]:
        """Rank -> its samples of the batch that gives order and shares. With `execute: peer`, the samples of a
        minibatch are where the whole batch is."""
        whole = [part.value for part in self._values[source]]
        if self._minibatch is None or consumer.execute != "peer" or every is self._values[source]:
            return consumer.receive(number, [part.value for part in every], dispatch, homes)
        found = consumer.receive(number, whole, dispatch, homes)
        ids = self._minibatch
        return {rank: rows.of([s for s in rows.samples if s.id in ids]) for rank, rows in found.items()}

    def _found(self, step: int, component: str, method: str, rank: int, number: int) -> list[Id] | None:
        """The ids that a call received in the run as the parameter `number`."""
        worker = self._job.components[component]["group"], rank
        key = step, component, method
        number_of_call = sum(one.key == key for one in self._job.called[worker])
        called = next(
            islice((one for one in self.seen.get(worker, ()) if one.key == key), number_of_call, None), None
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
