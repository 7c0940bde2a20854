"""What every worker does: the plan's stages, step by step, as far as they are its group's.

    for each step: for each stage that is due: take the inputs, call, give the value

A give never waits for its receiver's place in its program, so groups overlap as far as the slots of their
routes reach, and no order of stages can deadlock. In a sync without staleness both ends meet (`weights.py`
says why that cannot deadlock either). How the run ends is agreed by all (`ending.py`); a checkpoint is a cut
between two steps.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from meshctl.plan.model import Component as Placed
from meshctl.plan.model import Plan, Stage
from meshctl.run.directory import Recorded
from meshctl.run.shutdown import ENDLESS, Ending
from meshctl.runtime.batch.batch import MARK, Batch, BatchError, identify
from meshctl.runtime.batch.tensordict import is_tensordict
from meshctl.runtime.component import Component
from meshctl.runtime.routes.channel import END, LANES, Channel, Party, Taken
from meshctl.runtime.routes.record import Recorder, Replayed
from meshctl.runtime.routes.weights import WeightChannel, weights_of
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.data_plane import Dropped, Full, Transport
from meshctl.runtime.user_modes import collect_mode, dispatch_mode, execute_mode
from meshctl.topology.mesh import even_split
from meshctl.topology.modes import producer_set
from meshctl.topology.samples import Grid, RouteError

_MENDABLE = (RouteError, BatchError, FrameError, Full)
"""What is wrong with a user's values, or too much of them: told in one line."""
Say = Callable[..., Any]
"""Appends an event: `Journal.say`."""


class StageError(ValueError):
    """Something a user can mend, in a stage: the message stands for itself, no traceback is needed."""


@dataclass
class Clock:
    """What one step cost this worker."""

    stages: dict[str, float]
    """Seconds in the called method."""
    waits: dict[str, float]
    """Seconds until the inputs were there."""


@dataclass(frozen=True)
class Saver:
    """What the loop calls at a cut: `save(step, given)`, with the samples that each source has given."""

    save: Callable[[int, Mapping[str, int]], None] = lambda step, given: None


@dataclass(frozen=True)
class Seat:
    """Where this worker stands in a stage: what the plan says, asked once."""

    placed: Placed
    """The called component."""
    data_rank: int
    number: int | None
    """Which speaker of the stage's value it is; none where others speak for it."""
    speakers: int
    takes: tuple[tuple[Channel, ...], ...]
    """Whence the stages of each input come."""
    gives: tuple[Channel, ...]


class Loop:
    def __init__(
        self,
        plan: Plan,
        group: str,
        rank: int,
        components: Mapping[str, Component],
        transport: Transport,
        ending: Ending,
        say: Say,
        saver: Saver = Saver(),
        recorder: Recorder | None = None,
        recorded: Mapping[str, Recorded] = MappingProxyType({}),
    ) -> None:
        """`components` are those of this worker's group, set up; `rank` is its rank in the group. `recorded`
        are the recordings of the routes that the plan replays, by their names."""
        self.at: tuple[str, int] = ("", 0)
        """The stage and the step that are being run: where a fault is."""
        self._plan, self._group, self._rank = plan, group, rank
        self._components = components
        self._transport, self._ending, self._say, self._saver = transport, ending, say, saver
        self._recorder, self._recorded = recorder, recorded
        self._stages = [stage for stage in plan.stages if self._hosts(stage)]
        self._homes = {route.dispatch.home for route in plan.routes if route.dispatch.home}
        self._data: dict[tuple[str, str, str], Channel] = {}
        self._weights: dict[str, WeightChannel] = {}
        self._open()
        self._channels: list[Channel | WeightChannel] = [*self._data.values(), *self._weights.values()]
        self._replayed = [
            (source, channel)
            for (source, _, _), channel in self._data.items()
            if isinstance(channel, Replayed)
        ]
        self._takes = [
            (stage, [name for part in stage.inputs for name in part.stages]) for stage in plan.stages
        ]
        self._seats = {stage.name: self._seat(stage) for stage in self._stages if stage.kind == "call"}
        self._given: dict[str, int] = {stage.name: 0 for stage in plan.stages if stage.is_source}
        self._versions: dict[str, int] = {}
        self._cut = self._start = 0
        self._before: dict[str, int] = {}
        """The samples given before the first step of this attempt."""
        self._open_ended = False
        """Whether a stream may end unannounced."""
        self._clock = Clock({}, {})
        self._inside = False
        """Whether the component's own code is running."""
        self._metrics: list[dict[str, Any]] = []
        self._now: set[str] = set()
        """The stages that run in this step, on any worker: a value goes only to those."""
        self._ended = ""
        """The source whose stream ended in this step, unannounced."""
        transport.dropped = lambda: ending.dropped(self.at[1])

    # The run

    def run(self, start: int = 0, given: Mapping[str, int] | None = None) -> int:
        """Runs the steps after `start` and returns the last one; `given` are the samples given before it."""
        try:
            return self._run_after(start, given or {})
        except _MENDABLE as error:
            if self._inside:
                raise  # out of the user's own code: its line is worth more than ours
            raise StageError(str(error)) from error

    def _run_after(self, start: int, given: Mapping[str, int]) -> int:
        self._given.update(given)
        self._start, self._before = start, dict(self._given)
        self._open_ended = self._agree(start)
        self._sync_all(start)
        self._say("ready", step=start, last=self._ending.last if self._ending.last < ENDLESS else None)
        step = start
        try:
            while not self._ended and self._ending.begin(step + 1):
                self._step(step + 1)
                step += not self._ended
        except Dropped:
            step = self._ending.last
        if self._open_ended:
            step = self._ending.settle(step)
            self._close(step)
        if self._recorder:
            self._recorder.forget(step)
        self._ending.leave()
        return step

    def _agree(self, start: int) -> bool:
        """Tells and hears how many steps there are; whether some stream does not know."""
        batches = {
            stage.name: self._steps_of(stage, start)
            for stage in self._stages
            if self._limits(stage) and not self._rank
        }
        sources = [stage.name for stage in self._plan.stages if self._limits(stage)]
        known = self._ending.plan(self._plan.run.steps, batches, sources)
        if self._plan.run.epochs and all(count is None for count in known):
            raise StageError(
                f"run.epochs needs a source that knows its length, and none of {', '.join(sources)} has a __len__"
            )
        return None in known

    @staticmethod
    def _limits(stage: Stage) -> bool:
        """Whether the run ends with this source's data; one that runs at certain times only counts on."""
        return stage.is_source and not stage.when

    def _steps_of(self, stage: Stage, start: int) -> int | None:
        """The last step for which a source has data; none where it does not know."""
        total = self._total(stage)
        if total is None:
            return None
        left = -(-max(0, total - self._given[stage.name]) // stage.samples)
        self._check_tail(stage, (total - self._given[stage.name]) % stage.samples, left)
        return (start // stage.every + left) * stage.every

    def _check_tail(self, stage: Stage, tail: int, calls: int) -> None:
        """What is left for the last call must do for those that take it: said now, and not hours later."""
        if self._plan.run.steps and calls * stage.every > self._plan.run.steps:
            return
        for route in self._plan.routes:
            target = self._plan.stage(route.target)
            if (
                route.source == stage.name
                and execute_mode(target.execute).is_joint
                and not route.dispatch.allow_empty
            ):
                shares = dispatch_mode(route.dispatch.mode).share_count(
                    self._plan.component(target.component).mesh
                )
                if 0 < tail < shares:
                    raise StageError(
                        f"the data of `{stage.name}` end with a batch of {tail}, and stage `{target.name}` shares it among {shares}: "
                        "say dispatch: {allow_empty: true} there, or choose samples or data so that more are left"
                    )

    def _total(self, stage: Stage) -> int | None:
        """How many samples a source gives in the whole run, where it knows."""
        component = self._components[stage.component]
        length = getattr(component, "__len__", None)
        return length() * max(1, self._plan.run.epochs) if length else None

    def _close(self, last: int) -> None:
        """Where a stream may end unannounced: what was to run at the end, as far as it stands on its own, and
        the last state."""
        self.at, self._metrics, self._now = ("", last), [], set()
        self._transport.dropped = lambda: False
        for channel in self._weights.values():
            channel.forget(last)
        for stage, takes in self._takes:
            if (stage.when == "end" or (takes and not stage.when)) and all(
                name in self._now for name in takes
            ):
                self._now.add(stage.name)
        if self._now:
            begin, self._clock = time.perf_counter(), Clock({}, {})
            for stage in self._stages:
                if stage.name in self._now:
                    self._run(stage, last)
            self._report(last, begin)
        if self._plan.run.checkpoint and self._cut < last:
            self._save(last)

    # One step

    def _step(self, step: int) -> None:
        begin = time.perf_counter()
        self._clock = Clock({}, {})
        now = self._now = {source for source, channel in self._replayed if channel.has(step)}
        for stage, takes in self._takes:
            if self._due(stage, step) and now.issuperset(takes):
                now.add(stage.name)
        for stage in self._stages:
            if stage.name in self._now:
                self._run(stage, step)
            elif stage.kind == "sync" and self._takes_weights(stage):
                self._take_weights(stage, step)
        self.at = ("", step)
        if self._ended:
            return
        if self._saves(step):
            self._save(step)
        self._report(step, begin)

    def _due(self, stage: Stage, step: int) -> bool:
        if stage.when:
            at_end = step == self._ending.announced and not self._open_ended
            return {"start": step == 1, "end": at_end, "checkpoint": self._saves(step)}[stage.when]
        return step % stage.every == 0

    def _saves(self, step: int) -> bool:
        saves = self._plan.run.checkpoint
        return saves is not None and (
            step == self._ending.announced or (saves.every > 0 and step % saves.every == 0)
        )

    def _report(self, step: int, begin: float) -> None:
        routes = {channel.route.name: channel.sent for channel in self._channels if channel.sent}
        for channel in self._channels:
            channel.sent = 0
        seconds = time.perf_counter() - begin
        for metric in self._metrics:
            self._say("metric", step=step, **metric)
        self._metrics = []
        self._say(
            "step",
            step=step,
            seconds=seconds,
            stages=self._clock.stages,
            waits=self._clock.waits,
            routes=routes,
        )

    def _run(self, stage: Stage, step: int) -> None:
        self.at = (stage.name, step)
        if stage.kind == "sync":
            self._sync(stage, step)
        elif execute_mode(stage.execute).is_called(self._plan.component(stage.component).mesh, self._rank):
            self._call(stage, step)

    # A call

    def _call(self, stage: Stage, step: int) -> None:
        begin = time.perf_counter()
        arguments, first = ([], None) if stage.is_source else self._inputs(stage)
        ready = time.perf_counter()
        self._clock.waits[stage.name] = ready - begin
        seat = self._seats[stage.name]
        if arguments is None:
            value: Any = END
        elif stage.is_source:
            numbers = self._numbers(stage)
            self._given[stage.name] = numbers.stop
            value = None if seat.number is None else self._source(stage, seat, seat.number, step, numbers)
        else:
            value = self._called(stage, seat, step, arguments)
            value = self._marked(stage, seat, identify(value, first)) if isinstance(value, Batch) else value
        self._clock.stages[stage.name] = time.perf_counter() - ready
        weight = (
            float(len(first)) if first is not None else float(len(value)) if isinstance(value, Batch) else 1.0
        )
        self._give(stage, seat, value, weight)

    def _give(self, stage: Stage, seat: Seat, value: Any, weight: float) -> None:
        now = [channel for channel in seat.gives if channel.route.target in self._now]
        if self._recorder and seat.number is not None:
            self._recorder.keep(
                [channel.route for channel in now], self.at[1], seat.number, seat.speakers, value, weight
            )
        ends = [channel.give(value, weight, self._rank) for channel in now]
        if value is END and (not seat.gives or any(ends)):
            self._ended = self._ended or stage.name
            if stage.is_source and seat.number == 0:
                self._ending.ask(f"the data of `{stage.name}` ended", ended=self.at[1])
        elif seat.number is not None and not seat.gives and not isinstance(value, Batch) and value is not END:
            self._metric(stage, value, weight)

    def _source(self, stage: Stage, seat: Seat, number: int, step: int, numbers: range) -> Any:
        """Of a source's next samples, those that are this data rank's; their ids are their numbers."""
        part = even_split(len(numbers), seat.speakers, number)
        mine = numbers[part.start : part.stop]
        value = self._called(stage, seat, step, [("", mine)])
        if value is None and (total := self._total(stage)) is not None:
            raise StageError(
                f"`{stage.component}` gave no samples from {mine.start} on, and it has said that there are {total}"
            )
        if value is None:
            return END
        if not isinstance(value, Batch):
            raise StageError(
                f"a source gives a Batch or None, `{stage.component}.{stage.method}` gave a {type(value).__name__}"
            )
        if len(value) > len(mine):
            raise StageError(
                f"`{stage.component}.{stage.method}` gave {len(value)} samples, its share is {len(mine)}"
            )
        ids = Grid(mine.start, (len(value),)) if len(value) else torch.empty((0, 1), dtype=torch.int64)
        most = -(-len(numbers) // seat.speakers)
        return self._marked(stage, seat, Batch(value.columns, ids=ids, most=most))

    def _seat(self, stage: Stage) -> Seat:
        placed, who = (
            self._plan.component(stage.component),
            producer_set(collect_mode(stage.collect), execute_mode(stage.execute)),
        )
        takes = tuple(
            tuple(self._data[source, stage.name, part.parameter] for source in part.stages)
            for part in stage.inputs
        )
        gives = tuple(channel for (source, _, _), channel in self._data.items() if source == stage.name)
        mesh = placed.mesh
        return Seat(
            placed, mesh.data_rank(self._rank), who.index_of(mesh, self._rank), who.count(mesh), takes, gives
        )

    def _numbers(self, stage: Stage) -> range:
        start = self._given[stage.name]
        total = self._total(stage) if self._limits(stage) else None
        stop = start + stage.samples if total is None else min(start + stage.samples, total)
        return range(start, stop)

    def _called(self, stage: Stage, seat: Seat, step: int, arguments: Sequence[tuple[str, Any]]) -> Any:
        component = self._components[stage.component]
        place = component.place
        place.step = step
        place.log = lambda values, weight: self._logged(stage, seat, values, weight)
        seed_all(self._plan.seed, stage.component, stage.name, seat.data_rank, step, device=place.device.type)
        method = getattr(component, stage.method)
        plain, named = (
            [value for name, value in arguments if not name],
            {name: value for name, value in arguments if name},
        )
        self._inside = True
        value = method(*plain, **named)
        self._inside = False
        return Batch.from_tensordict(value) if is_tensordict(value) else value

    def _marked(self, stage: Stage, seat: Seat, batch: Batch) -> Batch:
        """Samples carry the version of the weights that made them, and their home where a later stage sends
        them back to it."""
        marks: dict[str, Any] = {}
        if seat.placed.name in self._versions:
            marks[MARK + "version"] = torch.full((len(batch),), self._versions[seat.placed.name])
        if stage.name in self._homes:
            marks[MARK + "home." + stage.name] = torch.full((len(batch),), seat.data_rank)
        return batch.with_columns(**marks) if marks else batch

    # Inputs

    def _inputs(self, stage: Stage) -> tuple[list[tuple[str, Any]] | None, Batch | None]:
        """(parameter, value) of each input, none where a stream ended; and the first batch, which gives order
        and shares to all."""
        taken = [
            [(channel, channel.take(self._rank)) for channel in channels]
            for channels in self._seats[stage.name].takes
        ]
        lead: tuple[Channel, Taken] | None = None
        for part in taken:
            for pair in part:
                if pair[1].value is END:
                    return None, None
                if lead is None and isinstance(pair[1].value, Batch):
                    lead = pair
        arguments, first = list[tuple[str, Any]](), None
        for named, got in zip(stage.inputs, taken, strict=True):
            value = self._joined(got, lead)
            arguments.append((named.parameter, value))
            first = value if first is None and isinstance(value, Batch) else first
        return arguments, first

    def _joined(self, got: Sequence[tuple[Channel, Taken]], lead: tuple[Channel, Taken] | None) -> Any:
        """One parameter's value: the columns of all its stages, on the samples of the leading input."""
        if len(got) == 1:
            return self._aligned(*got[0], lead)
        if not all(isinstance(taken.value, Batch) for _, taken in got):
            kinds = ", ".join(
                f"`{channel.route.source}` gives a {type(taken.value).__name__}" for channel, taken in got
            )
            raise RouteError(f"a list of stages joins batches: {kinds}")
        values = [self._aligned(channel, taken, lead) for channel, taken in got]
        whole = values[0]
        for other in values[1:]:
            whole = whole.joined(other)
        return whole

    def _aligned(self, channel: Channel, taken: Taken, lead: tuple[Channel, Taken] | None) -> Any:
        if lead is None or taken is lead[1] or not isinstance(taken.value, Batch):
            return taken.value
        first, leading = lead
        if first.cuts_samples and not channel.cuts_samples:
            return taken.value
        try:
            batch = channel.aligned(taken, first.wanted(leading), self._rank)
        except RouteError as error:
            raise RouteError(
                f"`{first.route.source}` and `{channel.route.source}` do not have the same samples: {error}"
            ) from error
        batch.most = leading.value.most
        return batch

    # Metrics

    def _metric(self, stage: Stage, value: Any, weight: float) -> None:
        """A value that no stage takes moves nowhere: the launcher folds it into the step's metrics."""
        collect = collect_mode(stage.collect).join
        values = scalars(value)
        if values:
            self._note(stage, values, weight, collect if collect in ("sum", "first") else "mean")

    def _logged(self, stage: Stage, seat: Seat, values: Mapping[str, float], weight: float) -> None:
        for name, value in values.items():
            if not isinstance(value, (Mapping, bool, int, float, Tensor)):
                raise TypeError(f"self.log takes numbers: {name!r} is a {type(value).__name__}")
        if seat.placed.mesh.representative(seat.data_rank) == self._rank:
            self._note(stage, scalars(values), float(weight), "mean")

    def _note(self, stage: Stage, values: dict[str, float], weight: float, collect: str) -> None:
        """Kept until the step is over: one that is dropped leaves no trace."""
        self._metrics.append({"stage": stage.name, "values": values, "weight": weight, "collect": collect})

    # Weights

    def _sync_all(self, start: int) -> None:
        """Before the first step, and after a resume: the takers' weights are the givers'."""
        self._cut = start
        for stage in self._stages:
            if stage.kind == "sync":
                self.at = (stage.name, start)
                channel = self._weights[stage.name]
                gives = (
                    weights_of(self._components[stage.component], stage.method)
                    if self._gives_weights(stage)
                    else None
                )
                takes = self._own_weights(stage) if self._takes_weights(stage) else None
                channel.meet(gives, takes)
                self._move(stage, start, cut=True)

    def _sync(self, stage: Stage, step: int) -> None:
        begin, channel = time.perf_counter(), self._weights[stage.name]
        channel.waited = 0.0
        self._move(stage, step)
        self._clock.waits[stage.name] = channel.waited
        self._clock.stages[stage.name] = time.perf_counter() - begin - channel.waited

    def _move(self, stage: Stage, step: int, *, cut: bool = False) -> None:
        channel = self._weights[stage.name]
        channel.given = step
        if self._gives_weights(stage):
            channel.give(weights_of(self._components[stage.component], stage.method), step)
        if self._takes_weights(stage):
            channel.due(step)
            self._take_weights(stage, step, cut=cut)

    def _take_weights(self, stage: Stage, step: int, *, cut: bool = False) -> None:
        channel = self._weights[stage.name]
        while channel.ready(step, cut=cut):
            self.at = (
                stage.name,
                min(step, channel.next),
            )  # what is due was given, in a step that is not dropped
            stream = channel.take()
            getattr(self._components[stage.to], stage.to_method)(stream)
            if left := [name for name, _ in stream]:
                raise StageError(
                    f"`{stage.to}.{stage.to_method}` left {', '.join(f'`{name}`' for name in left[:3])} of its stream unread"
                )
            self._versions[stage.to] = channel.version
            self.at = (stage.name, step)

    def _own_weights(self, stage: Stage) -> dict[str, Tensor]:
        """The layout that the taker wants: what its own stream of the same name has."""
        return weights_of(self._components[stage.to], stage.to_method.removeprefix("load_"))

    def _gives_weights(self, stage: Stage) -> bool:
        return self._plan.component(stage.component).group == self._group

    def _takes_weights(self, stage: Stage) -> bool:
        return self._plan.component(stage.to).group == self._group

    # Checkpoints

    def _save(self, step: int) -> None:
        """A cut: the takers' weights are the givers', as they are after a resume, so nothing crosses it."""
        for stage in self._stages:
            if stage.kind == "sync":
                self.at = (stage.name, step)
                if self._weights[stage.name].given < step:
                    self._move(stage, step, cut=True)
                elif self._takes_weights(stage):
                    self._take_weights(stage, step, cut=True)
        self._cut = step
        self.at = ("checkpoint", step)
        self._saver.save(step, self._given_after(step))
        self.at = ("", step)

    def _given_after(self, step: int) -> dict[str, int]:
        """The samples that each source had given when that step was over; this worker may have begun steps
        that are dropped."""
        given = dict(self._given)
        for stage in self._plan.stages:
            if self._limits(stage):
                calls = step // stage.every - self._start // stage.every
                given[stage.name] = min(given[stage.name], self._before[stage.name] + calls * stage.samples)
        return given

    # Opening

    def _hosts(self, stage: Stage) -> bool:
        names = [stage.component, stage.to] if stage.kind == "sync" else [stage.component]
        return any(name in self._components for name in names)

    def _open(self) -> None:
        for number, route in enumerate(self._plan.routes):
            lane = number * LANES
            source, target = self._plan.stage(route.source), self._plan.stage(route.target)
            if route.kind == "weights":
                if self._hosts(source):
                    giver, taker = self._party(source.component), self._party(source.to)
                    self._weights[source.name] = WeightChannel(
                        route, giver, taker, self._transport, lane, source.lag, checksum=source.checksum
                    )
            elif self._hosts(source) or self._hosts(target):
                giver, taker = (
                    self._party(source.component, source.execute),
                    self._party(target.component, target.execute),
                )
                self._data[source.name, target.name, route.parameter] = Channel(
                    route, giver, taker, self._transport, lane
                )
        for route in self._plan.replayed:
            target = self._plan.stage(route.target)
            taker = self._party(target.component, target.execute)
            replayed = Replayed(route, taker, self._transport, self._recorded[route.name], lambda: self.at[1])
            self._data[route.source, route.target, route.parameter] = replayed

    def _party(self, component: str, execute: str = "all") -> Party:
        placed = self._plan.component(component)
        group = self._plan.group(placed.group)
        return Party(
            placed.mesh,
            group.first_place,
            execute,
            cache(partial(self._plan.node_of, placed.group)),
            group.device_type,
        )


def seed_all(*words: Any, device: str) -> None:
    """Seeds the generators of torch, random and, where it is loaded, numpy: the same for the same words, on
    any machine and layout."""
    seed = int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "big") >> 1
    random.seed(seed)
    if device == "cpu":
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed asks every kind of device that there is: 0.1 ms
    else:
        torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def scalars(value: Any, name: str = "") -> dict[str, float]:
    """The numbers in a value, by name: nested mappings join their keys with a slash, a bare number is called
    `value`."""
    if isinstance(value, Mapping):
        found = [scalars(item, f"{name}/{key}" if name else str(key)) for key, item in value.items()]
        return {key: number for part in found for key, number in part.items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return {name or "value": float(value)} if isinstance(value, (bool, int, float)) else {}
