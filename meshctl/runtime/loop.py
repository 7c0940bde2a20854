"""The loop of every worker: runs the stages of its group in the plan, step by step.

    for each step: for each stage that is due: receive the inputs, call, send the value

The stages of a block do this several times in a step (`call.BlockRun`). A send does not wait until its
receiver gets to the stage, so groups overlap as far as the slots of their routes allow, and no order of
stages can deadlock. In a sync without staleness both sides run together (`routes.weights` says why that
cannot deadlock either). How the run ends is agreed by all workers (`run.shutdown`); a checkpoint is a cut
between two steps. Where a stream may end the run, the order of stages is that of `schedule.StreamOrder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from meshctl.plan.model import Stage
from meshctl.run.events import StepReport
from meshctl.run.progress import Activity
from meshctl.run.shutdown import ENDLESS
from meshctl.runtime.batch.batch import BatchError
from meshctl.runtime.call import BlockRun, BlockStage, Call, Channels, RepeatedSource, RouteKey, SourceCall
from meshctl.runtime.component import Component, context_of
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import LoopContext, StepState, TakePosition
from meshctl.runtime.metrics.stage_metrics import MemoryUse, StageMetrics
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import TAGS_PER_ROUTE, RouteContext
from meshctl.runtime.routes.inputs import HeldInput, MinibatchInput
from meshctl.runtime.routes.record import ReplayedChannel
from meshctl.runtime.routes.resumable import ResumableChannel, ResumableWeights
from meshctl.runtime.routes.weights import WeightChannel, WeightsOf, weights_of
from meshctl.runtime.schedule import Gate, Schedule, ScheduledStep, StreamOrder
from meshctl.runtime.sources import Sources
from meshctl.runtime.taken import TakenCall
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.errors import OutOfMemory, SentMemoryWritten
from meshctl.topology.modes import Route
from meshctl.topology.samples import RouteError

USER_ERRORS = (RouteError, BatchError, FrameError, OutOfMemory, SentMemoryWritten)
"""Errors of a user's values, or of too many of them: reported in one line."""
NOTHING: frozenset[str] = frozenset()


class Part(NamedTuple):
    """A part of a worker's program: mostly a stage."""

    run: Callable[[int], None]
    """Called with a step in which the part runs."""
    end: Callable[[int], None] = lambda step: None
    """Called instead with a step that is not part of the run. It sends END to the consumers."""


Program = tuple[Part, ...]
"""The parts that a worker runs in a step, in order."""


class Loop:
    def __init__(self, context: LoopContext) -> None:
        self._state = self.state = StepState()
        self._context, self._plan, self._agreement = context, context.plan, context.agreement
        self._turn = context.transport.turn
        self._stages = [stage for stage in self._plan.stages if context.hosts(stage)]
        self._schedule = Schedule(self._plan)
        self._sources = Sources(self._plan, context.components)
        self._data = data_ends(context)
        self._syncs = sync_ends(context)
        self._sync_metrics: dict[tuple[str, str], StageMetrics] = {}
        self._ends: list[Channel | WeightChannel] = [*self._data.values(), *self._syncs.values()]
        self._replayed = [end for end in self._data.values() if isinstance(end, ReplayedChannel)]
        self._calls = self._calls_of(self._stages, self._data)
        ours = context.components.items()
        self._in_passes = [one for name, one in ours if self._plan.is_in_passes(name)]
        self._takes = [call for call in self._calls.values() if isinstance(call, TakenCall)]
        self._programs: dict[Set[str], Program] = {}
        """The stages that run in a step -> this worker's program."""
        self._saved = 0
        """The last step after which the state was saved, or with which the run began."""
        self._is_open_ended = False
        """True if a stream may end unannounced."""
        self._order, self._memory = StreamOrder(self._plan), MemoryUse(context.events)

    # The run

    def run(
        self,
        start: int = 0,
        given: Mapping[str, int] | None = None,
        takes: Mapping[str, TakePosition] = MappingProxyType({}),
    ) -> int:
        """Runs the steps after `start` and returns the last one. `given` is source -> the number of samples
        that it has produced up to the end of step `start`, and `takes` has the passes of take blocks. Raises
        `StageError` for a user's mistake, and what a component's own code raises."""
        try:
            with self._turn.held():
                return self._run_after(start, given or {}, takes)
        except USER_ERRORS as error:
            if self._state.is_in_user_code:
                raise  # its own traceback shows the line
            raise StageError(str(error)) from error

    def _run_after(self, start: int, given: Mapping[str, int], takes: Mapping[str, TakePosition]) -> int:
        self._sources.begin(start, given)
        blocks = {one.stage.block: self._plan.block(one.stage.block).take for one in self._takes}
        takes = {name: takes.get(name, TakePosition(start * take)) for name, take in blocks.items()}
        streams, source = self._agree_on_length()
        for call in self._calls.values():
            if isinstance(call, SourceCall):
                call.check_length()
        if streams:
            self._is_open_ended, self._order = True, StreamOrder(self._plan, streams)
            for call in self._calls.values():
                call.keep_for(self._schedule.late_stages - self._schedule.together(call.stage))
                if isinstance(call, SourceCall) and self._order.asked.get(call.stage.name):
                    call.publish()
        start = self._rejoin(start, takes) if self._context.rejoining else self._open(start, takes)
        if self._context.restarts:
            ends = [end for end in self._ends if isinstance(end, ResumableChannel | ResumableWeights)]
            self._context.restarts.begin(ends, start + 1)
        last = self._agreement.last
        for component in self._context.components.values():
            context_of(component).last_step = last if last < ENDLESS else 0
        self._context.events.write("ready", step=start, last=last if last < ENDLESS else None, source=source)
        step = start
        while not self._state.ended and self._agreement.begin(step + 1):
            self._run_step(step + 1)
            step += not self._state.ended
            if self._context.restarts:
                self._context.restarts.move_to(step + 1)
        if self._is_open_ended and not self._agreement.has_failed:
            self._close(step, start)
        self._at_checkpoint(step, self._context.wait_for_save)
        self._context.progress.trace.end()
        if self._context.recorder:
            self._context.recorder.forget(step)
        self._agreement.leave()
        return step

    def _agree_on_length(self) -> tuple[list[str], str]:
        """Agrees with all workers on the planned last step. Returns the streams without a length, and the
        source with whose data the run ends, empty if it ends with `run.steps`."""
        own = [] if self._context.rank else self._stages
        names, steps = self._plan.bounding_sources, self._plan.run.steps
        lasts = {one.name: self._sources.last_step(one) for one in own if self._sources.bounds_run(one)}
        known = self._agreement.plan(steps, lasts, names)
        if self._plan.run.epochs and all(count is None for count in known):
            raise StageError(
                f"run.epochs needs a source with a length, but none of {', '.join(names)} has a __len__"
            )
        if None not in known:  # a stream may end the run earlier
            last = self._agreement.last
            running = self._schedule.at(last, last, is_open_ended=False, replayed=NOTHING).stages
            self._sources.check_tails(own, last, running)
        ends = {name: last for name, last in zip(names, known, strict=True) if last is not None}
        shortest = min(ends, key=lambda name: ends[name], default="")
        is_longer = bool(steps) and bool(shortest) and ends[shortest] >= steps
        streams = [name for name, last in zip(names, known, strict=True) if last is None]
        return streams, "" if is_longer else shortest

    def _open(self, start: int, takes: Mapping[str, TakePosition]) -> int:
        """Opens all routes; consumers of weights then hold those of their producers, also after a resume.
        Returns `start`."""
        self._saved = start
        self._state.report = StepReport(start)
        for stage in self._stages:
            if stage.kind == "sync":
                self._state.at = (stage.name, start)
                self._syncs[stage.name].open()
                self._cut(stage, start)
        self._context.progress.report_waits(self._state.report)
        self._context.events.write_metrics(self._state.report)
        for taken in self._takes:
            taken.begin(takes[taken.stage.block], start)
        return start

    def _rejoin(self, start: int, takes: Mapping[str, TakePosition]) -> int:
        """Opens the routes of a worker whose group has restarted. Returns the step after which it runs."""
        rejoining = self._context.rejoining
        assert rejoining
        beginning = rejoining.begin(self._agreement, start, is_open_ended=self._is_open_ended)
        step = self._saved = beginning.step
        self._sources.move_to(step)
        for end in self._ends:
            if isinstance(end, ResumableChannel):
                generation = rejoining.route_generation(end.other.group)
                end.begin_after(generation, beginning.delivered[end.route.name])
        rejoining.await_others()
        for stage in self._stages:
            sync = self._syncs.get(stage.name)
            if isinstance(sync, ResumableWeights):
                versions = beginning.versions[stage.name]
                self._state.at = (stage.name, step)
                generation = rejoining.route_generation(sync.other.group)
                sync.begin_after(generation, step, versions, beginning.rows[stage.name])
                self._load(stage, step, versions[0] + stage.lag)
            elif sync:
                sync.open()
                self._cut(stage, step)
        for taken in self._takes:
            known, position = beginning.takes.get(taken.stage.block), takes[taken.stage.block]
            if known:
                position = TakePosition(known["next"], dict(known["open"]))
            taken.begin(position, beginning.taken)
        return step

    def _close(self, last: int, start: int) -> None:
        """Runs the stages that wait for the end, and saves the last state. Called after an unannounced
        end."""
        self._state.ended = ""
        self._context.progress.begin_end(last, visit=int(last > start))
        for sync in self._syncs.values():
            sync.close(last)
        ran = self._scheduled(last) if last > start else ScheduledStep(NOTHING, True)
        saves = self._plan.run.checkpoint is not None and not ran.is_saved
        if running := self._schedule.closing_stages(last, ran.stages, saves=saves):
            self._run_program(self._closing_program(running), last)
            self._write_report()
        if saves:
            self._save(last, ran.stages | running)

    def _closing_program(self, running: Set[str]) -> Program:
        """Returns what this worker runs after an unannounced end. The routes have tags of their own, since
        their usual ones may hold values of the step that is not part of the run."""
        data = data_ends(self._context, running)
        self._ends += data.values()
        data |= {key: end for key, end in self._data.items() if isinstance(end, ReplayedChannel)}
        calls = self._calls_of([stage for stage in self._stages if stage.name in running], data)
        program: list[Part] = []
        for stage in self._stages:
            outputs = [end for (source, *_), end in data.items() if source == stage.name]
            if stage.name not in running:
                if outputs and self._calls[stage.name].is_called:
                    program.append(Part(partial(self._calls[stage.name].send_kept, outputs)))
            elif stage.kind == "sync":
                program.append(Part(partial(self._sync, stage)))
            else:
                program += self._runs_of(stage, calls, running)
        return tuple(program)

    # One step

    def _run_step(self, step: int) -> None:
        now = self._scheduled(step)
        program = self._programs.get(now.stages)
        if program is None:
            program = self._programs[now.stages] = self._program(now.stages)
        self._run_program(program, step)
        if self._state.ended:
            return
        if now.is_saved:
            with self._context.progress.trace.span("checkpoint", f"checkpoint of step {step}"):
                self._save(step, now.stages)
        self._write_report()

    def _scheduled(self, step: int) -> ScheduledStep:
        return self._schedule.at(
            step,
            self._agreement.announced,
            is_open_ended=self._is_open_ended,
            replayed=frozenset(end.route.source for end in self._replayed if end.due(step)),
            is_cut=self._agreement.is_cut(step),
        )

    def _run_program(self, program: Program, step: int) -> None:
        self._state.begin = perf_counter()
        self._state.report = StepReport(step)
        self._context.progress.begin_step(step)
        for number, part in enumerate(program, 1):
            part.run(step)
            if self._state.ended:
                for later in program[number:]:
                    later.end(step)
                break
        self._state.at = ("", step)

    def _program(self, running: Set[str]) -> Program:
        """Returns what this worker runs in a step with the stages `running`. A value is sent only to stages
        that run."""
        program: list[Part] = []
        for item in self._order.items:
            if isinstance(item, Gate):  # of whose streams this worker asks those whose end it cannot see
                asked = [s for s in item.streams if self._context.group in self._order.asked[s.name]]
                program += [Part(partial(self._ask_for, one)) for one in asked if one.name in running]
            elif not self._context.hosts(item):
                continue
            elif item.kind == "sync":
                program.append(Part(partial(self._sync, item, is_sent=item.name in running)))
            elif item.name in running:
                program += self._runs_of(item, self._calls, running)
        return tuple(program)

    def _ask_for(self, stream: Stage, step: int) -> None:
        """Waits until it is known whether a stream has data for the step."""
        self._state.at = (stream.name, step)
        begin = perf_counter()
        self._context.progress.enter(Activity.RECEIVING, self._plan.stages.index(stream), begin)
        if not self._agreement.is_given(stream.name, step // stream.every, self._order.readers(stream.name)):
            self._state.ended = stream.name
        waits = self._state.report.waits
        waits[stream.name] = waits.get(stream.name, 0.0) + perf_counter() - begin

    def _runs_of(self, stage: Stage, calls: Mapping[str, Call], running: Set[str]) -> Iterator[Part]:
        """Yields what this worker runs for a stage; for a block, at the first of its stages on this
        worker."""
        if not stage.block:
            if (call := calls[stage.name]).is_called:
                outputs = call.outputs_to(running)
                yield Part(partial(call.run, outputs), partial(call.send_end, outputs))
            return
        if self._plan.is_of_take(stage):
            if (taken := calls.get(stage.name)) is not None:
                outputs = taken.outputs_to(running)
                yield Part(partial(taken.run, outputs), partial(taken.send_end, outputs))
            return
        hosted = [other.name for other in self._stages if other.block == stage.block]
        if stage.name == hosted[0]:
            together = self._schedule.together(stage)
            stages = [
                BlockStage(call, call.outputs_to(running & together), call.outputs_to(running - together))
                for name in hosted
                if (call := calls[name]).is_called
            ]
            run = BlockRun(self._plan.block(stage.block), stages, self._state, self._context.progress)
            yield Part(run.run, run.send_end)

    def _write_report(self) -> None:
        report = self._state.report
        for end in self._ends:
            if end.bytes_sent:
                report.routes[end.route.name], end.bytes_sent = end.bytes_sent, 0
        report.seconds = (now := perf_counter()) - self._state.begin
        report.collectives = self._context.progress.end_step()
        self._context.progress.report_waits(report)
        self._context.events.write_step(report)
        self._memory.report(report.step, now)

    # Weights

    def _sync(self, stage: Stage, step: int, *, is_sent: bool = True) -> None:
        """Sends weights where the sync runs, and loads those that are due."""
        end = self._syncs[stage.name]
        if not is_sent and not end.due(step):
            return
        begin, end.seconds_waited = perf_counter(), 0.0
        self._state.at = (stage.name, step)
        self._context.progress.enter(Activity.SYNCING, self._plan.stages.index(stage), begin)
        if is_sent:
            end.send(self._weights(stage), step)
        self._load(stage, step, step)
        spent = perf_counter() - begin - end.seconds_waited
        self._state.report.add_times(stage.name, end.seconds_waited, spent)

    def _weights(self, stage: Stage) -> Mapping[str, Tensor] | None:
        if stage.component not in self._context.components:
            return None
        return self._turn.during(weights_of)(self._component(stage, stage.component), stage.method)

    def _component(self, stage: Stage, name: str) -> Component:
        """Returns a component whose method a sync calls in the running step. Numbers that the method logs are
        metrics of the sync."""
        component, key = self._context.components[name], (stage.name, name)
        if key not in self._sync_metrics:
            mesh, run = self._plan.component(name).mesh, context_of(component).run_dir
            events, rank = self._context.events, self._context.rank
            self._sync_metrics[key] = StageMetrics(stage, mesh, rank, self._state, events, run)
        metrics = self._sync_metrics[key]
        metrics.begin_call()
        context_of(component).step, context_of(component).log = self._state.at[1], metrics.log
        return component

    def _load(self, stage: Stage, step: int, until: int) -> None:
        end = self._syncs[stage.name]
        while end.due(until):
            received = end.receive(step)
            component = self._component(stage, stage.to)
            context_of(component).version = received.sent_step
            with self._without_passes():
                load = getattr(component, stage.to_method)
                self._turn.during(load)(self._turn.read(received.value))
            if left := [f"`{name}`" for name, _ in received.value]:
                raise StageError(
                    f"`{stage.to}.{stage.to_method}` left {', '.join(left[:3])} of its stream unread"
                )
            self._state.versions[stage.to] = received.sent_step

    # Checkpoints

    def _save(self, step: int, ran: Set[str]) -> None:
        """Saves the state after a step in which the stages `ran` ran. Consumers load their producers' weights
        first, as after a resume, so nothing crosses the cut."""
        outdated = self._schedule.outdated_syncs(ran)
        for stage in self._stages:
            if stage.kind == "sync":
                self._state.at = (stage.name, step)
                self._cut(stage, step, stage.name in outdated)
        self._saved = step
        takes = {taken.stage.block: taken.position() for taken in self._takes}
        self._at_checkpoint(step, partial(self._context.save, step, self._sources.given_after(step), takes))

    def _at_checkpoint(self, step: int, act: Callable[[], None]) -> None:
        self._state.at = ("checkpoint", step)
        self._context.progress.enter(Activity.SAVING, -1, perf_counter())
        with self._without_passes():
            self._turn.during(act)()
        self._state.at = ("", step)

    def _without_passes(self) -> ExitStack:
        """Returns a context in which no pass calls an ordinary method of a component."""
        stack = ExitStack()
        for component in self._in_passes:
            stack.enter_context(context_of(component).in_use)
        return stack

    def _cut(self, stage: Stage, step: int, is_outdated: bool = False) -> None:
        """Lets the consumers of a sync catch up with its producers, for any lag. `is_outdated` is whether the
        weights may have changed since the sync ran in this step."""
        end = self._syncs[stage.name]
        if end.last_sent < step or is_outdated:
            end.send(self._weights(stage), step)
        self._load(stage, step, until=step + stage.lag)

    def _calls_of(self, stages: Iterable[Stage], data: Channels) -> dict[str, Call]:
        into_blocks = {key: end for key, end in data.items() if self._plan.is_into_block(end.route)}
        held = dict[RouteKey, HeldInput]()
        for key, end in into_blocks.items():
            block = self._plan.block(self._plan.stage(end.route.target).block)
            is_over = end.route.source == block.over
            held[key] = (
                MinibatchInput(end, block) if is_over else HeldInput(end, may_have_more=bool(block.over))
            )
        calls: dict[str, Call] = {}
        last_of = {stage.block: stage.name for stage in stages}
        for stage in stages:
            if self._plan.is_of_take(stage):
                if stage.name == last_of[stage.block]:
                    calls[stage.name] = TakenCall(stage, self._context, data, self._state)
            elif stage.is_source:
                kind = RepeatedSource if stage.block else SourceCall
                calls[stage.name] = kind(stage, self._context, data, self._state, self._sources)
            elif stage.kind == "call":
                calls[stage.name] = Call(stage, self._context, data, self._state, held)
        return calls


def data_ends(context: LoopContext, closing: Set[str] | None = None) -> dict[RouteKey, Channel]:
    """Returns this worker's ends of data routes by (source, target, parameter). With `closing`, they are
    further ends of the routes into these stages, which share no tag with the others."""
    plan = context.plan
    found: dict[RouteKey, Channel] = {}
    for number, route in enumerate(plan.routes, 0 if closing is None else len(plan.routes)):
        stages = plan.stage(route.source), plan.stage(route.target)
        is_meant = closing is None or route.target in closing
        is_meant = is_meant and not plan.is_of_take(stages[1])
        if route.kind == "data" and is_meant and any(map(context.hosts, stages)):
            found[_key(route)] = _channel(context, route, number)
    for route in plan.replayed if closing is None else ():
        target = plan.stage(route.target)
        consumer = context.side(target.component, target.execute)
        recorded = context.recorded[route.name]
        found[_key(route)] = ReplayedChannel.of(route, consumer, context.transport, recorded)
    return found


def _key(route: Route) -> RouteKey:
    return route.source, route.target, route.parameter


def _channel(context: LoopContext, route: Route, number: int) -> Channel:
    source, target = context.plan.stage(route.source), context.plan.stage(route.target)
    producer = context.side(source.component, source.execute)
    consumer = context.side(target.component, target.execute)
    made = RouteContext(route, producer, consumer, context.transport, number * TAGS_PER_ROUTE)
    # A group that may restart, and those that take its values, can be as many steps behind a producer as all
    # of its slots allow.
    kept = 2 + sum(route.slots for route in context.plan.routes)
    return ResumableChannel(made, kept) if made.is_resumable else Channel(made)


def sync_ends(context: LoopContext) -> dict[str, WeightChannel]:
    """Returns this worker's ends of weight routes by sync stage."""
    plan = context.plan
    found: dict[str, WeightChannel] = {}
    for number, route in enumerate(plan.routes):
        stage = plan.stage(route.source)
        if route.kind == "weights" and context.hosts(stage):
            sides = context.side(stage.component), context.side(stage.to)
            made = RouteContext(route, *sides, context.transport, number * TAGS_PER_ROUTE)
            produced = _weights_of(context, stage.component, stage.method)
            # `load_adapter` loads what `adapter` yields, and a method without `load_` what `weights` does
            loads = stage.to_method.removeprefix("load_")
            wanted = _weights_of(context, stage.to, loads if loads != stage.to_method else "weights")
            kind = ResumableWeights if made.is_resumable else WeightChannel
            found[stage.name] = kind(made, produced, wanted, lag=stage.lag, checksum=stage.checksum)
    return found


def _weights_of(context: LoopContext, component: str, method: str) -> WeightsOf | None:
    """Returns the function that reads the weights of a component, or None for a component of another
    group."""
    found = context.components.get(component)
    return None if found is None else partial(weights_of, found, method)
