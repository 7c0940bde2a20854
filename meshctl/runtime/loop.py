"""What every worker executes: the plan's stages of its group, step by step.

    for each step: for each stage that is due: receive the inputs, call, send the value

A send never waits for its receiver's place in its program, so groups overlap as far as the slots of their
routes reach, and no order of stages can deadlock. In a sync without staleness both sides run together
(`routes.weights` says why that cannot deadlock either). How the run ends is agreed by all workers
(`run.shutdown`); a checkpoint is a cut between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from meshctl.plan.model import Plan, Stage
from meshctl.run.directory import Recorded
from meshctl.run.shutdown import ENDLESS, StopAgreement
from meshctl.runtime.batch.batch import MARK, Batch, BatchError, identify
from meshctl.runtime.batch.tensordict import is_tensordict
from meshctl.runtime.component import Component
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, TAGS_PER_ROUTE, RouteContext, RouteEnd, RouteSide
from meshctl.runtime.routes.inputs import Arguments, Input, Inputs
from meshctl.runtime.routes.record import Recorder, ReplayedChannel
from meshctl.runtime.routes.weights import WeightChannel, WeightsOf, weights_of
from meshctl.runtime.schedule import Schedule
from meshctl.runtime.seeding import seed_all
from meshctl.runtime.sources import Sources
from meshctl.runtime.step_report import StepReport, WriteEvent, scalars
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import OutOfMemory, StepCancelled
from meshctl.runtime.user_modes import collect_mode, execute_mode
from meshctl.topology.mesh import even_split
from meshctl.topology.modes import producer_set
from meshctl.topology.samples import Grid, RouteError

USER_ERRORS = (RouteError, BatchError, FrameError, OutOfMemory)
"""Errors of a user's values, or of too many of them: reported in one line."""
NOTHING: frozenset[str] = frozenset()
NO_ARGUMENTS = Arguments()
CheckpointHook = Callable[[int, Mapping[str, int]], None]
"""Saves the state at a cut: (step, samples that each source has given)."""


@dataclass(frozen=True)
class LoopContext:
    """What a worker's loop works with."""

    plan: Plan
    group: str
    rank: int
    """In the group's world."""
    components: Mapping[str, Component]
    """Those of this worker's group, set up."""
    transport: DataPlane
    agreement: StopAgreement
    write_event: WriteEvent
    save: CheckpointHook = lambda step, given: None
    recorder: Recorder | None = None
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    """Route -> its recording, for the routes that the plan replays."""

    def hosts(self, stage: Stage) -> bool:
        """Returns whether this worker's group runs a stage, or one side of a sync."""
        return stage.component in self.components or stage.to in self.components

    def side(self, component: str, execute: str = "all") -> RouteSide:
        placed = self.plan.component(component)
        group = self.plan.group(placed.group)
        node_of = cache(partial(self.plan.node_of, placed.group))
        return RouteSide(placed.mesh, group.first_job_rank, execute, node_of, group.device_type)


@dataclass(frozen=True)
class StageContext:
    """A stage as this worker runs it."""

    stage: Stage
    component: Component
    method: Callable[..., Any]
    is_source: bool
    is_called: bool
    """Whether the stage calls this rank."""
    data_rank: int
    producer: int | None
    """This rank's index among the producers of the stage's value, or None."""
    producers: int
    inputs: Inputs
    outputs: tuple[Channel, ...]
    log: Callable[[Mapping[str, float], float], None]
    """`self.log` while the stage runs."""
    reduction: str
    """How the value's numbers become one metric: `mean`, `sum` or `first`."""
    has_home: bool
    """Whether a later stage sends the samples back to the data rank that made them."""


class Loop:
    def __init__(self, context: LoopContext) -> None:
        self.at: tuple[str, int] = ("", 0)
        """The stage and the step that are being run: where a fault is."""
        self._context, self._plan, self._write_event = context, context.plan, context.write_event
        self._agreement = context.agreement
        self._stages = [stage for stage in self._plan.stages if context.hosts(stage)]
        self._schedule = Schedule(self._plan)
        self._sources = Sources(self._plan, context.components)
        self._data = _data_ends(context)
        self._syncs = _sync_ends(context)
        self._ends: list[RouteEnd] = [*self._data.values(), *self._syncs.values()]
        self._replayed = [end for end in self._data.values() if isinstance(end, ReplayedChannel)]
        self._calls = {
            stage.name: self._stage_context(stage) for stage in self._stages if stage.kind == "call"
        }
        self._versions: dict[str, int] = {}
        """Component -> the step whose weights it has loaded."""
        self._saved = 0
        """The last step after which the state was saved, or with which the run began."""
        self._is_open_ended = False
        """Whether a stream may end unannounced."""
        self._report = StepReport()
        self._in_user_code = False
        self._running: frozenset[str] = frozenset()
        """The stages that run in this step, on any worker: a value is sent to those only."""
        self._ended = ""
        """The source whose stream has ended in this step, unannounced."""
        context.transport.cancel_when(lambda: self._agreement.dropped(self.at[1]))

    # The run

    def run(self, start: int = 0, given: Mapping[str, int] | None = None) -> int:
        """Runs the steps after `start` and returns the last one. `given` are the samples that sources gave
        before it. Raises `StageError` for a user's mistake, and what a component's own code raises."""
        try:
            return self._run_after(start, given or {})
        except USER_ERRORS as error:
            if self._in_user_code:
                raise  # its own traceback shows the line
            raise StageError(str(error)) from error

    def _run_after(self, start: int, given: Mapping[str, int]) -> int:
        self._sources.begin(start, given)
        self._is_open_ended = self._agree_on_length()
        self._open(start)
        last = self._agreement.last
        self._write_event("ready", step=start, last=last if last < ENDLESS else None)
        step = self._run_steps(start)
        if self._is_open_ended:
            step = self._agreement.agree(step)
            self._close(step)
        if self._context.recorder:
            self._context.recorder.forget(step)
        self._agreement.leave()
        return step

    def _agree_on_length(self) -> bool:
        """Agrees with all workers on the planned last step, and returns whether a stream has no length."""
        own = [] if self._context.rank else self._stages
        names = self._sources.bounding
        known = self._agreement.plan(self._plan.run.steps, self._sources.last_steps(own), names)
        if self._plan.run.epochs and all(count is None for count in known):
            raise StageError(
                f"run.epochs needs a source that knows its length, and none of {', '.join(names)} has a "
                "__len__"
            )
        return None in known

    def _open(self, start: int) -> None:
        """Opens all routes; consumers of weights then hold those of their producers, also after a resume."""
        self._saved = start
        for end in self._data.values():
            end.open(start)
        for stage in self._stages:
            if stage.kind == "sync":
                self.at = (stage.name, start)
                self._syncs[stage.name].open(start)
                self._cut(stage, start)

    def _run_steps(self, start: int) -> int:
        """Runs the steps after `start` and returns the last one that was completed."""
        step = start
        try:
            while not self._ended and self._agreement.begin(step + 1):
                self._run_step(step + 1)
                step += not self._ended
        except StepCancelled:
            return self._agreement.last
        return step

    def _close(self, last: int) -> None:
        """After an unannounced end: runs the stages of the end, as far as they need no other ones, and saves
        the last state."""
        self.at, self._report = ("", last), StepReport()
        self._context.transport.cancel_when(lambda: False)
        for end in self._ends:
            end.close(last)
        self._running = self._schedule.closing_stages()
        if self._running:
            for stage in self._stages:
                if stage.name in self._running:
                    self._run_stage(stage, last)
            self._report.send(self._write_event, last, self._ends)
        if self._plan.run.checkpoint and self._saved < last:
            self._save(last)

    # One step

    def _run_step(self, step: int) -> None:
        self._report = StepReport()
        replayed = (
            {end.route.source for end in self._replayed if end.due(step)} if self._replayed else NOTHING
        )
        now = self._schedule.at(
            step, self._agreement.announced, is_open_ended=self._is_open_ended, replayed=replayed
        )
        running = self._running = now.stages
        for stage in self._stages:
            if stage.name in running:
                self._run_stage(stage, step)
            elif stage.kind == "sync":
                self._load(stage, step, step)
        self.at = ("", step)
        if self._ended:
            return
        if now.is_saved:
            self._save(step)
        self._report.send(self._write_event, step, self._ends)

    def _run_stage(self, stage: Stage, step: int) -> None:
        self.at = (stage.name, step)
        if stage.kind == "sync":
            self._sync(stage, step)
        elif (call := self._calls[stage.name]).is_called:
            self._call(call, step)

    # A call

    def _call(self, context: StageContext, step: int) -> None:
        name, begin = context.stage.name, perf_counter()
        arguments = NO_ARGUMENTS if context.is_source else context.inputs.receive(step)
        ready = perf_counter()
        self._report.waits[name] = ready - begin
        if arguments is None:
            value: Any = END
        elif context.is_source:
            value = self._next_samples(context, step)
        else:
            value = self._call_method(context, step, arguments)
            if isinstance(value, Batch):
                value = self._marked(context, identify(value, arguments.first))
        self._report.stages[name] = perf_counter() - ready
        weight = 1.0
        if arguments is not None and arguments.first is not None:
            weight = float(len(arguments.first))
        elif isinstance(value, Batch):
            weight = float(len(value))
        self._send(context, value, step, weight)

    def _call_method(self, context: StageContext, step: int, arguments: Arguments) -> Any:
        """Calls the endpoint, with seeded generators; a TensorDict that it returns becomes a batch."""
        place = context.component.place
        place.step, place.log = step, context.log
        stage = context.stage
        device = place.device.type
        seed_all(self._plan.seed, stage.component, stage.name, context.data_rank, step, device=device)
        self._in_user_code = True
        value = context.method(*arguments.positional, **arguments.named)
        self._in_user_code = False
        return Batch.from_tensordict(value) if is_tensordict(value) else value

    def _next_samples(self, context: StageContext, step: int) -> Any:
        """Returns this data rank's share of a source's next samples; their ids are their numbers."""
        stage = context.stage
        numbers = self._sources.next_numbers(stage)
        if context.producer is None:
            return None
        part = even_split(len(numbers), context.producers, context.producer)
        mine = numbers[part.start : part.stop]
        value = self._call_method(context, step, Arguments([mine]))
        if value is None:
            if (total := self._sources.total(stage)) is not None:
                raise StageError(
                    f"`{stage.component}` gave no samples from {mine.start} on, and it has said that "
                    f"there are {total}"
                )
            return END
        if not isinstance(value, Batch):
            raise StageError(
                f"a source gives a Batch or None, `{stage.component}.{stage.method}` gave a "
                f"{type(value).__name__}"
            )
        if len(value) > len(mine):
            raise StageError(
                f"`{stage.component}.{stage.method}` gave {len(value)} samples, its share is {len(mine)}"
            )
        ids = Grid(mine.start, (len(value),)) if len(value) else torch.empty((0, 1), dtype=torch.int64)
        most = -(-len(numbers) // context.producers)
        return self._marked(context, Batch(value.columns, ids=ids, most=most))

    def _marked(self, context: StageContext, batch: Batch) -> Batch:
        """Adds marks to samples: the version of the weights that made them, and their home where a later
        stage sends them back to it."""
        stage = context.stage
        marks: dict[str, Any] = {}
        if (version := self._versions.get(stage.component)) is not None:
            marks[MARK + "version"] = torch.full((len(batch),), version)
        if context.has_home:
            marks[MARK + "home." + stage.name] = torch.full((len(batch),), context.data_rank)
        return batch.with_columns(**marks) if marks else batch

    def _send(self, context: StageContext, value: Any, step: int, weight: float) -> None:
        """Sends the value to the stages that run in this step. A value without consumers is a metric."""
        outputs = [end for end in context.outputs if end.route.target in self._running]
        if self._context.recorder and context.producer is not None:
            routes = [end.route for end in outputs]
            self._context.recorder.write(routes, step, context.producer, context.producers, value, weight)
        ends = [end.send(value, step, weight) for end in outputs]
        if value is not END:
            is_metric = not context.outputs and context.producer is not None
            if is_metric and not isinstance(value, Batch):
                self._report.add_metric(context.stage.name, scalars(value), weight, context.reduction)
        elif not context.outputs or any(ends):
            self._ended = self._ended or context.stage.name
            if context.is_source and context.producer == 0:
                self._agreement.ask(f"the data of `{context.stage.name}` ended", ended=step)

    def _log(self, stage: Stage, is_counted: bool, values: Mapping[str, float], weight: float) -> None:
        """`self.log` of a component: counted once per data rank."""
        for name, value in values.items():
            if not isinstance(value, (Mapping, bool, int, float, Tensor)):
                raise TypeError(f"self.log takes numbers: {name!r} is a {type(value).__name__}")
        if is_counted:
            self._report.add_metric(stage.name, scalars(values), float(weight), "mean")

    # Weights

    def _sync(self, stage: Stage, step: int) -> None:
        begin, end = perf_counter(), self._syncs[stage.name]
        end.seconds_waited = 0.0
        end.send(self._weights(stage), step)
        self._load(stage, step, step)
        self._report.waits[stage.name] = end.seconds_waited
        self._report.stages[stage.name] = perf_counter() - begin - end.seconds_waited

    def _weights(self, stage: Stage) -> Mapping[str, Tensor] | None:
        component = self._context.components.get(stage.component)
        return None if component is None else weights_of(component, stage.method)

    def _load(self, stage: Stage, step: int, until: int) -> None:
        """Loads the weights that are due by the step `until`."""
        end = self._syncs[stage.name]
        while end.due(until):
            received = end.receive(step)
            self.at = (stage.name, min(step, received.sent_step))  # it was sent in a step that is not dropped
            getattr(self._context.components[stage.to], stage.to_method)(received.value)
            if left := [f"`{name}`" for name, _ in received.value]:
                raise StageError(
                    f"`{stage.to}.{stage.to_method}` left {', '.join(left[:3])} of its stream unread"
                )
            self._versions[stage.to] = received.sent_step
            self.at = (stage.name, step)

    # Checkpoints

    def _save(self, step: int) -> None:
        """Saves the state after a step. Consumers load their producers' weights first, as after a resume, so
        nothing crosses the cut."""
        for stage in self._stages:
            if stage.kind == "sync":
                self.at = (stage.name, step)
                self._cut(stage, step)
        self._saved = step
        self.at = ("checkpoint", step)
        self._context.save(step, self._sources.given_after(step))
        self.at = ("", step)

    def _cut(self, stage: Stage, step: int) -> None:
        """Lets the consumers of a sync catch up with its producers, whatever its lag."""
        end = self._syncs[stage.name]
        if end.last_sent < step:
            end.send(self._weights(stage), step)
        self._load(stage, step, until=step + stage.lag)

    # Contexts

    def _stage_context(self, stage: Stage) -> StageContext:
        mesh, rank = self._plan.component(stage.component).mesh, self._context.rank
        component, data_rank = self._context.components[stage.component], mesh.data_rank(rank)
        collect, execute = collect_mode(stage.collect), execute_mode(stage.execute)
        producers = producer_set(collect, execute)
        reduction = (
            collect.join if isinstance(collect.join, str) and collect.join in ("sum", "first") else "mean"
        )
        inputs = [
            Input(part.parameter, tuple(self._data[name, stage.name, part.parameter] for name in part.stages))
            for part in stage.inputs
        ]
        return StageContext(
            stage,
            component,
            getattr(component, stage.method),
            stage.is_source,
            execute.is_called(mesh, rank),
            data_rank,
            producers.index_of(mesh, rank),
            producers.count(mesh),
            Inputs(tuple(inputs)),
            tuple(end for (source, _, _), end in self._data.items() if source == stage.name),
            partial(self._log, stage, mesh.representative(data_rank) == rank),
            reduction,
            any(route.dispatch.home == stage.name for route in self._plan.routes),
        )


def _data_ends(context: LoopContext) -> dict[tuple[str, str, str], Channel]:
    """Returns this worker's ends of data routes by (source, target, parameter)."""
    plan, transport = context.plan, context.transport
    found: dict[tuple[str, str, str], Channel] = {}
    for number, route in enumerate(plan.routes):
        source, target = plan.stage(route.source), plan.stage(route.target)
        if route.kind == "data" and (context.hosts(source) or context.hosts(target)):
            producer = context.side(source.component, source.execute)
            consumer = context.side(target.component, target.execute)
            made = RouteContext(route, producer, consumer, transport, number * TAGS_PER_ROUTE)
            found[source.name, target.name, route.parameter] = Channel(made)
    for route in plan.replayed:
        target = plan.stage(route.target)
        consumer = context.side(target.component, target.execute)
        replayed = ReplayedChannel.of(route, consumer, transport, context.recorded[route.name])
        found[route.source, route.target, route.parameter] = replayed
    return found


def _sync_ends(context: LoopContext) -> dict[str, WeightChannel]:
    """Returns this worker's ends of weight routes by sync stage."""
    plan = context.plan
    found: dict[str, WeightChannel] = {}
    for number, route in enumerate(plan.routes):
        stage = plan.stage(route.source)
        if route.kind == "weights" and context.hosts(stage):
            sides = context.side(stage.component), context.side(stage.to)
            made = RouteContext(route, *sides, context.transport, number * TAGS_PER_ROUTE)
            produced = _weights_of(context, stage.component, stage.method)
            wanted = _weights_of(context, stage.to, stage.to_method.removeprefix("load_"))
            found[stage.name] = WeightChannel(made, produced, wanted, lag=stage.lag, checksum=stage.checksum)
    return found


def _weights_of(context: LoopContext, component: str, method: str) -> WeightsOf | None:
    """Returns what reads the weights of a component of this worker, or None for one of another group."""
    found = context.components.get(component)
    return None if found is None else partial(weights_of, found, method)
