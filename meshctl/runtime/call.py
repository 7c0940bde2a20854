"""A `call` stage as one worker runs it: receive the inputs, call the method, send the value.

What does not change between steps is computed once, when the loop is made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from meshctl.plan.model import Block, Stage
from meshctl.run.progress import Activity
from meshctl.run.settings import end_of_data
from meshctl.runtime.batch.batch import MARK, Batch, identify, numbered
from meshctl.runtime.batch.tensordict import is_tensordict
from meshctl.runtime.checks import Borrowed, PeerCheck
from meshctl.runtime.component import context_of, coroutine_of, endpoint_of
from meshctl.runtime.errors import CollectiveError, StageError
from meshctl.runtime.loop_context import LoopContext, StepState
from meshctl.runtime.metrics.stage_metrics import StageMetrics
from meshctl.runtime.progress import Progress
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END
from meshctl.runtime.routes.inputs import Arguments, HeldInput, Input, InputEnd, received_arguments
from meshctl.runtime.routes.joins import KeptValues, PassValues
from meshctl.runtime.seeding import seed_all
from meshctl.runtime.sources import Sources
from meshctl.runtime.user_modes import collect_mode, execute_mode
from meshctl.topology.mesh import even_split
from meshctl.topology.modes import producer_set

RouteKey = tuple[str, str, str]
"""The source, the target and the parameter of a route."""
Channels = Mapping[RouteKey, Channel]
"""Ends of data routes."""
NOTHING_HELD: Mapping[RouteKey, HeldInput] = MappingProxyType({})


def exclusive(endpoint: Callable[..., Any], in_use: threading.RLock) -> Callable[..., Any]:
    """Returns an endpoint that no pass calls at the same time."""

    def call(*arguments: Any, **named: Any) -> Any:
        with in_use:
            return endpoint(*arguments, **named)

    return call


class Call:
    """Runs a stage with inputs on this worker: receives them, calls the endpoint, and sends the value.
    `SourceCall` runs a stage without inputs."""

    def __init__(
        self,
        stage: Stage,
        context: LoopContext,
        channels: Channels,
        state: StepState,
        held: Mapping[RouteKey, HeldInput] = NOTHING_HELD,
    ) -> None:
        """`held` are the ends of the routes whose values are held while a block runs, in place of those in
        `channels`."""
        self.stage = stage
        self._state, self._recorder = state, context.recorder
        mesh, rank = context.plan.component(stage.component).mesh, context.rank
        component, self._data_rank = context.components[stage.component], mesh.data_rank(rank)
        collect, execute = collect_mode(stage.collect), execute_mode(stage.execute)
        producers = producer_set(collect, execute)
        self.is_called = execute.is_called(mesh, rank)
        """True if the stage calls this rank."""
        self._producer = producers.index_of(mesh, rank)
        """This rank's index among the producers of the stage's value, or None."""
        self._producers = producers.count(mesh)
        self._outputs = tuple(end for (source, *_), end in channels.items() if source == stage.name)
        ends: dict[RouteKey, InputEnd] = {**channels, **held}
        self._inputs = [
            Input(part.parameter, tuple(ends[name, stage.name, part.parameter] for name in part.stages))
            for part in stage.inputs
            if not context.plan.is_of_take(stage)
        ]
        self.held = tuple(end for (_, target, _), end in held.items() if target == stage.name)
        """The inputs that a block receives once."""
        self._component, self._context = component, context_of(component)
        endpoint = getattr(component, stage.method)
        if context.plan.is_in_passes(stage.component) and not coroutine_of(component, stage.method):
            endpoint = exclusive(endpoint, self._context.in_use)
        self._endpoint = context.transport.turn.during(endpoint)
        run = self._context.run_dir
        self._metrics = StageMetrics(stage, mesh, rank, state, context.events, run, collect, execute)
        words = context.plan.seed, stage.component, stage.name, self._data_rank
        self._seed_all = partial(seed_all, *words, device=self._context.device.type)
        self._progress, self._number = context.progress, context.plan.stages.index(stage)
        self._events = context.events
        has_all_checks = context.plan.run.has_all_checks
        called, is_read_only = f"{stage.component}.{stage.method}", context.transport.near.is_read_only
        self._named = f"`{called}`"
        self._borrowed = Borrowed(called, is_read_only, has_digests=has_all_checks)
        self._peer_check = PeerCheck.of(stage, context) if has_all_checks else None
        self.passes: PassValues | None = None
        """The values of the passes of a block, where a stage outside of it takes them."""
        routes = [end.route for end in self._outputs]
        outward = [route for route in routes if context.plan.stage(route.target).block != stage.block]
        if stage.block and outward and not context.plan.is_of_take(stage):
            self.passes = PassValues(outward[0], collect)
        self._kept: KeptValues | None = None
        declared = endpoint_of(type(component), stage.method)
        self._retry = declared.retry if declared else 0
        self._has_home = any(route.dispatch.home == stage.name for route in context.plan.routes)
        """True if a later stage sends the samples back to the data rank that made them."""

    def outputs_to(self, running: Set[str]) -> tuple[Channel, ...]:
        """Returns the ends of the routes whose target stages are in `running`."""
        return tuple(end for end in self._outputs if end.route.target in running)

    def keep_for(self, late: Set[str]) -> None:
        """Keeps the newest values from now on, if a stage of `late` takes them. These stages may run after an
        unannounced end of the data, and then take the value of the last step."""
        if any(end.route.target in late for end in self._outputs):
            self._kept = KeptValues()

    def send_kept(self, outputs: Sequence[Channel], step: int) -> None:
        """Sends the value of the last step to stages that run at the end only."""
        assert self._kept is not None
        self._state.at = (self.stage.name, step)
        value, weight = self._kept.at(step)
        self._transmit(outputs, value, step, weight)

    @property
    def can_end(self) -> bool:
        """True if this rank sees the end of a round of a block. A rank that only takes part in a source's
        step, without producing samples, does not."""
        return True

    def begin_round(self) -> None:
        """Prepares for the first pass of a round of a block."""
        if self.passes is not None:
            self.passes.clear()

    def send_passes(self, outputs: Sequence[Channel], step: int) -> None:
        """Sends the joined value of all passes of a round, where stages outside of the block take it. A rank
        without samples in any pass sends END, as it does in a pass, because the other producers wait for
        it."""
        if self.passes is None:
            return
        self._state.at = (self.stage.name, step)
        value, weight = self.passes.joined()
        if self._kept:
            self._kept.add(step, value, weight)
        self._transmit(outputs, value, step, weight)

    def run(self, outputs: Sequence[Channel], step: int) -> None:
        """Runs a step of the stage, and sends its value through `outputs`."""
        if self.run_once(outputs, step):
            self._end(outputs, step)

    def send_end(self, outputs: Sequence[Channel], step: int) -> None:
        """Sends END in place of the value of a step that is not part of the run, and calls nothing."""
        self._state.at = (self.stage.name, step)
        for end in outputs:
            end.send(END, step)

    def _end(self, outputs: Sequence[Channel], step: int) -> None:
        self._state.ended = self._state.ended or self.stage.name

    def run_once(self, outputs: Sequence[Channel], step: int) -> bool:
        """Calls the stage once, sends its value through `outputs`, and returns whether its data have
        ended."""
        self._state.at = (self.stage.name, step)
        begin = ready = perf_counter()
        arguments: Arguments | None = Arguments([], {}, None, ())
        if self._inputs:
            self._progress.enter(Activity.RECEIVING, self._number, begin)
            arguments = received_arguments(self._inputs, step)
            ready = perf_counter()
        self._progress.enter(Activity.CALLING, self._number, ready)
        value: Any = END
        weight = 1.0
        if arguments is not None:
            value, weight = self._made(step, arguments, is_sent=bool(outputs))
        called = perf_counter()
        in_collectives = self._progress.take_collective_seconds()
        self._state.report.add_times(self.stage.name, ready - begin, called - ready, in_collectives)
        return self._send(outputs, value, step, weight, called)

    def _made(self, step: int, arguments: Arguments, *, is_sent: bool) -> tuple[Any, float]:
        """Returns the value of a call, and its weight: the number of samples."""
        self._borrowed.begin(arguments)
        value, first = self._call(step, arguments), arguments.first
        self._borrowed.end(arguments)
        if isinstance(value, Batch):
            if self.stage.is_without_data:
                name = self.stage.name
                raise StageError(f"{self._named} returned a Batch, but `{name}` is a stage without data")
            value = self._marked(identify(value, first))
        if self._peer_check:
            self._peer_check.compare(value, self._metrics.logged, step, is_sent=is_sent)
        counted = value if first is None else first
        return value, float(len(counted)) if isinstance(counted, Batch) else 1.0

    def _call(self, step: int, arguments: Arguments) -> Any:
        self._context.step, self._context.log = step, self._metrics.log
        self._context.version = self._state.versions.get(self.stage.component)
        self._metrics.begin_call()
        self._seed(step)
        self._state.is_in_user_code = True
        call = partial(self._endpoint, *arguments.positional, **arguments.named)
        value = self._repeated(call, step, arguments) if self._retry else call()
        self._state.is_in_user_code = False
        if isinstance(value, Batch) or not is_tensordict(value):
            return value
        return Batch.from_tensordict(value)

    def _repeated(self, call: Callable[[], Any], step: int, arguments: Arguments) -> Any:
        """Returns the value of a call, which is repeated after an exception: `@endpoint(retry=2)`.

        Only the rank whose call has failed repeats it, so such an endpoint must not call collectives: its
        peers would not take part a second time. Before each repetition the borrowed batches must be
        unchanged, the generators are seeded as at first, and what the failed call has logged is dropped. What
        it has changed in its component stays. Raises the exception of the last call, and `StageError` if the
        endpoint calls a collective."""
        for failed in range(self._retry + 1):
            try:
                value = self._without_collectives(call)
            except (CollectiveError, StageError):
                raise
            except Exception as error:
                if failed == self._retry:
                    raise
                name, times = type(error).__name__, f"({failed + 1} of {self._retry})"
                again = f"raised {name} and is called again {times}"
                print(f"meshctl: step {step}: {self._named} {again}", file=sys.stderr)
                self._events.write("retried", step=step, stage=self.stage.name, error=name, times=failed + 1)
                self._metrics.drop_call()
                self._seed(step)
                if arguments.batches:
                    self._borrowed.end(arguments)
                    self._borrowed.begin(arguments)
            else:
                if failed:
                    self._state.report.add_metric(self.stage.name, {"retries": float(failed)}, 1.0, "sum")
                return value
        raise AssertionError("the last call has returned or raised")

    def _without_collectives(self, call: Callable[[], Any]) -> Any:
        progress, name = self._progress, self._named.strip("`")
        before = progress.torch_calls.sample()
        progress.no_collectives_in = name
        try:
            return call()
        finally:
            progress.no_collectives_in = ""
            if progress.torch_calls.sample()[: len(before)] != before:
                raise StageError(
                    f"`{name}` called a collective of its `torch_mesh`, and its `retry` may repeat "
                    "the call on one rank only: leave out `retry`"
                )

    def _seed(self, step: int) -> None:
        self._seed_all(*(step, self._state.pass_number) if self._state.pass_number else (step,))

    def _marked(self, batch: Batch) -> Batch:
        """Adds marks to samples: the version of the weights that made them, and their home where a later
        stage sends them back to it."""
        if not self._has_home and not self._state.versions:
            return batch
        marks: dict[str, Any] = {}
        if (version := self._state.versions.get(self.stage.component)) is not None:
            marks[MARK + "version"] = torch.full((len(batch),), version)
        if self._has_home:
            marks[MARK + "home." + self.stage.name] = torch.full((len(batch),), self._data_rank)
        return batch.with_columns(**marks) if marks else batch

    def _send(self, outputs: Sequence[Channel], value: Any, step: int, weight: float, begin: float) -> bool:
        """Sends the value on all outputs, from `begin` in seconds of `perf_counter`, and adds the numbers
        that it contains to the metrics of the stage. Returns whether the stream has ended."""
        if outputs:
            self._progress.enter(Activity.SENDING, self._number, begin)
        if self.passes is not None:
            self.passes.add(value, weight)
        elif self._kept:
            self._kept.add(step, value, weight)
        all_ended = self._transmit(outputs, value, step, weight)
        if outputs:
            sends = self._state.report.sends
            sends[self.stage.name] = sends.get(self.stage.name, 0.0) + perf_counter() - begin
        if value is END:
            return self._has_ended(outputs, all_ended)
        if self._producer is not None and not isinstance(value, Batch):
            self._metrics.add_returned(value, weight)
            if self._producer == 0 and not outputs:
                self._metrics.warn_of_others(value)
        return False

    def _has_ended(self, outputs: Sequence[Channel], all_ended: bool) -> bool:
        """Returns whether the stream, which has ended on this rank, has ended on all ranks. `all_ended` is
        what the routes found; where the value is sent on none, this rank's end counts."""
        return all_ended or not outputs

    def _transmit(self, outputs: Sequence[Channel], value: Any, step: int, weight: float) -> bool:
        """Sends and records the value, and returns whether the stream of a route has ended."""
        if self._recorder and self._producer is not None:
            routes = [end.route for end in outputs]
            self._recorder.write(routes, step, self._producer, self._producers, value, weight)
        has_ended = False
        for end in outputs:
            has_ended = end.send(value, step, weight) or has_ended
        return has_ended


class SourceCall(Call):
    """A stage without inputs: each producer is called with the numbers of its share of the next samples."""

    def __init__(
        self, stage: Stage, context: LoopContext, channels: Channels, state: StepState, sources: Sources
    ) -> None:
        super().__init__(stage, context, channels, state)
        self._sources, self._agreement = sources, context.agreement
        self._had_no_data = False
        """True if this producer had no more samples in the step before."""
        self._is_asked = False
        """True if other workers ask the store whether the source had data."""
        self._whole_share = self._share_of(stage.samples)
        """This producer's part of a call for the stage's full number of samples. The last call may be for
        fewer."""

    def check_length(self) -> None:
        """Compares the lengths of the source on its producers, which would end its data in different steps.
        Raises `StageError` if they differ."""
        if self._producer is None or self._producers == 1:
            return
        name, own = self.stage.name, self._total
        first = self._agreement.length_on_first(name, own, is_first=self._producer == 0)
        if own != first:
            shown = ["none" if length is None else str(length) for length in (first, own)]
            raise StageError(
                f"the length of `{self.stage.component}` is {shown[0]} on its first rank and {shown[1]} on "
                "this one: __len__ must return the number of samples of all ranks together"
            )

    def publish(self) -> None:
        """Publishes from now on whether the source had data, for workers that do not receive its value."""
        self._is_asked = self._producer == 0

    def run(self, outputs: Sequence[Channel], step: int) -> None:
        has_ended = self.run_once(outputs, step)
        self._give(step, has_data=not has_ended)
        if has_ended:
            self._end(outputs, step)

    def send_end(self, outputs: Sequence[Channel], step: int) -> None:
        super().send_end(outputs, step)
        self._give(step, has_data=False)

    def _give(self, step: int, *, has_data: bool) -> None:
        if self._is_asked:
            self._agreement.give(self.stage.name, step // self.stage.every, has_data=has_data)

    def _share_of(self, count: int) -> range:
        return range(0) if self._producer is None else even_split(count, self._producers, self._producer)

    def _end(self, outputs: Sequence[Channel], step: int) -> None:
        super()._end(outputs, step)
        if self._producer == 0 or not outputs:
            self._agreement.ask(end_of_data(self.stage.name), ended=step)

    def _has_ended(self, outputs: Sequence[Channel], all_ended: bool) -> bool:
        """Returns whether the stream has ended on all ranks. Where the value is sent on no route, the first
        producer decides, since its samples come before those of the others. Another producer may run out one
        step earlier, so it counts its second step without data."""
        had_no_data, self._had_no_data = self._had_no_data, True
        return all_ended if outputs else self._producer == 0 or had_no_data

    def _made(self, step: int, arguments: Arguments, *, is_sent: bool) -> tuple[Any, float]:
        """Returns this producer's share of the next samples, whose ids are their numbers, and their
        number."""
        stage, numbers = self.stage, self._next_numbers()
        if self._producer is None:
            return None, 1.0
        is_whole = len(numbers) == stage.samples
        part = self._whole_share if is_whole else self._share_of(len(numbers))
        mine = numbers[part.start : part.stop]
        value = END if stage.block and not mine else self._call(step, arguments._replace(positional=[mine]))
        if value is None:
            total, gave = self._total, f"`{stage.component}` returned no samples from number {mine.start} on"
            if total is not None and mine.start < total:
                raise StageError(f"{gave}, but its __len__ promises {total}")
            if not stage.block and not self._sources.bounds_run(stage):
                raise StageError(
                    f"{gave} (step {step}), but the run does not end with the data of `{stage.name}`: return "
                    "samples again, from the first one, or set `ends_run: true` there"
                )
            value = END
        if value is END:
            return END, 1.0
        if not isinstance(value, Batch):
            raise StageError(
                f"a source must return a Batch or None, but {self._named} returned a {type(value).__name__}"
            )
        self._had_no_data = False
        count, most = len(value), -(-len(numbers) // self._producers)
        if count > len(mine):
            raise StageError(f"{self._named} returned {count} samples, but its share is {len(mine)}")
        if not count:
            none = torch.empty((0, 1), dtype=torch.int64)
            return self._marked(Batch(value.columns, ids=none, most=most)), 0.0
        return self._marked(numbered(value, mine.start, most)), float(count)

    def _next_numbers(self) -> range:
        return self._sources.next_numbers(self.stage)

    @property
    def _total(self) -> int | None:
        return self._sources.totals[self.stage.name]


class RepeatedSource(SourceCall):
    """The source of a block. It begins with its first sample each time."""

    _given = 0
    """The number of samples that it has produced in this round."""

    @property
    def _total(self) -> int | None:
        length = getattr(self._component, "__len__", None)
        return None if length is None else length()

    @property
    def can_end(self) -> bool:
        return self._producer is not None

    def begin_round(self) -> None:
        super().begin_round()
        self._given, self._had_no_data = 0, False

    def run_once(self, outputs: Sequence[Channel], step: int) -> bool:
        has_ended = super().run_once(outputs, step)
        if has_ended and self._state.pass_number == 1:
            block = self.stage.block
            raise StageError(f"{self._named} returned no samples, but `{block}` runs until its data end")
        return has_ended

    def _next_numbers(self) -> range:
        total, start = self._total, self._given
        self._given = start + self.stage.samples
        if total is None:
            return range(start, self._given)
        return range(min(start, total), min(self._given, total))


class BlockStage(NamedTuple):
    """A stage of a block as one worker runs it."""

    call: Call
    inner: tuple[Channel, ...]
    """The ends of the routes to stages of the block."""
    outer: tuple[Channel, ...]
    """The ends of the routes to stages outside of the block."""


class BlockRun:
    """A block of stages that runs several times in a step (`repeat` in the recipe), as one worker runs it.

        for each round: for each pass: for each stage of the block: receive the inputs, call, send the value

    All ranks of all groups run the passes of a block in lockstep. A round ends as a run does whose source is
    a stream: the repeated source, or the minibatches of a value from outside, return END instead of a batch.
    Every stage of the block receives it, directly or through others, so every rank sees END in the same pass.
    Values from outside are received once, before the first pass. A stage outside receives one value: that of
    all passes of the last round.
    """

    def __init__(
        self, block: Block, stages: Sequence[BlockStage], state: StepState, progress: Progress
    ) -> None:
        """`stages` are the stages of the block that are called on this worker, in the order of the plan."""
        self._block, self._state, self._progress = block, state, progress
        self._stages = [stage for stage in stages if stage.call.can_end]

    def run(self, step: int) -> None:
        """Runs all passes of a step."""
        held = [one for stage in self._stages for one in stage.call.held]
        try:
            for one in held:
                one.begin(step)
            for number in range(1, self._block.times + 1 if self._stages else 1):
                self._run_round(step, number)
            self._state.pass_number = 0
            for stage in self._stages:
                stage.call.send_passes(stage.outer, step)
        finally:
            self._state.pass_number = 0
            for one in held:
                one.release()

    def send_end(self, step: int) -> None:
        """Sends END to the stages outside of the block, in place of the values of a step that is not part of
        the run."""
        for stage in self._stages:
            stage.call.send_end(stage.outer, step)

    def _run_round(self, step: int, number: int) -> None:
        for stage in self._stages:
            stage.call.begin_round()
            for held in stage.call.held:
                held.begin_round(number)
        has_ended = False
        while not has_ended:
            self._state.pass_number += 1
            self._progress.next_pass(self._block.name)
            for call, inner, _ in self._stages:
                has_ended |= call.run_once(inner, step)
        self._state.pass_number -= 1  # the last one had no samples
