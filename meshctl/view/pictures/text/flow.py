"""The pipeline: stages in the order in which workers run them, with their producers, consumers and routes.

pipeline         ranks  collect  dispatch   samples
 1  ╭─  batch = A prompts.next()
 2  ╰┬  rollouts = B sampler.sample(batch)
     │    batch     4 -> 4  flatten  slice_dp   64   12 kB  in process
 3   ╰  scored = C judge.score(rollouts)
          rollouts  4 -> 2  flatten  slice_dp by tokens    512  2.1 MB  shared memory
 4      publish: D actor => B sampler
          weights   4 -> 4  fsdp 2 x tp 2 => dp 4   shared memory
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshctl.plan.views.topology import Flow, PlacedStage, Topology
from meshctl.topology.modes import shown_mode
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER
from meshctl.view.pictures.text.lanes import Lanes, lanes_of
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import (
    ELLIPSIS,
    Column,
    Line,
    clip,
    columns,
    fit,
    ink,
    joined,
    line,
    padded,
    wants,
    width_of,
    wrapped,
)

SHORT = {**OVER, "node": "shm", "device": "ipc"}
"""Distances, for narrow pictures."""
UNKNOWN = "?"
"""Instead of a number of ranks that a user's mode decides."""
MIN_NAME = 8
"""Columns of the name of the producing stage, at least."""
MAX_INPUTS = 5
"""Inputs of a call that are named."""


@dataclass(frozen=True)
class Pipeline:
    topology: Topology
    marks: Marks
    only: tuple[Flow, ...] | None = None
    """The routes to draw, with the stages at their ends; None for all. Calls still name all of their
    inputs."""
    also: tuple[PlacedStage, ...] = ()
    """Further stages to draw."""

    @cached_property
    def shown(self) -> tuple[PlacedStage, ...]:
        if self.only is None:
            return self.topology.stages
        names = {name for route in self.only for name in (route.source, route.target)} | {
            stage.name for stage in self.also
        }
        return tuple(stage for stage in self.topology.stages if stage.name in names)

    @cached_property
    def stages(self) -> dict[str, PlacedStage]:
        return {stage.name: stage for stage in self.topology.stages}

    @cached_property
    def inputs(self) -> dict[str, list[Flow]]:
        """Stage -> all routes to it."""
        found: dict[str, list[Flow]] = {stage.name: [] for stage in self.topology.stages}
        for route in self.topology.routes:
            found[route.target].append(route)
        return found

    @cached_property
    def drawn(self) -> dict[str, list[Flow]]:
        """Stage -> the routes that are drawn below it."""
        routes = {route.name for route in (self.topology.routes if self.only is None else self.only)}
        return {
            name: [route for route in found if route.name in routes] for name, found in self.inputs.items()
        }

    @cached_property
    def consumed(self) -> set[str]:
        return {route.source for route in self.topology.routes if route.kind == "data"}

    @cached_property
    def lanes(self) -> Lanes | None:
        names = [stage.name for stage in self.shown]
        pairs = [
            (route.source, route.target)
            for name in names
            for route in self.drawn[name]
            if route.kind == "data"
        ]
        return lanes_of(names, pairs, {name: self.style(name) for name in names})

    def style(self, stage: str) -> str:
        """Returns the color of the component that runs a stage."""
        return self.marks.letter(self.stages[stage].component).style.lower()

    # Stages

    def call(self, stage: PlacedStage, room: int, least: int = 0) -> Line:
        """Returns `rollouts = B sampler.sample(batch)`, with as many inputs as fit, at least `least`."""
        choices = [self._call(stage, named) for named in range(MAX_INPUTS, least - 1, -1)]
        return next((each for each in choices if width_of(each) <= room), choices[-1])

    def _call(self, stage: PlacedStage, named: int) -> Line:
        producer = self._component(stage.component)
        if stage.kind == "sync":
            usual = (stage.method, stage.to_method) == ("weights", "load_weights")
            from_method, to_method = ("", "") if usual else (f".{stage.method}", f".{stage.to_method}")
            return line(
                ink(stage.name, "bold"),
                ": ",
                producer,
                from_method,
                " => ",
                self._component(stage.to),
                to_method,
            )
        return line(
            ink(stage.name, "bold"), " = ", producer, f".{stage.method}(", self._inputs(stage, named), ")"
        )

    def _component(self, name: str) -> Line:
        return line(self.marks.letter(name), " ", self.marks.name(name))

    def _inputs(self, stage: PlacedStage, named: int) -> Line:
        """Returns `batch`, `[scored, values]`, or `scored, other=rollouts`."""
        found: dict[str, list[str]] = {}
        for route in self.inputs[stage.name]:
            found.setdefault(route.parameter, []).append(route.source)
        return joined(
            _few([self._input(parameter, sources, named) for parameter, sources in found.items()], named)
        )

    def _input(self, parameter: str, sources: Sequence[str], named: int) -> Line:
        names = _few([line(ink(source, self.style(source))) for source in sources], named)
        choices = f"{parameter}=" if parameter not in ("", *sources[:1]) else ""
        return line(choices, "[", joined(names), "]") if len(sources) > 1 else line(choices, names[0])

    def facts(self, stage: PlacedStage) -> Line:
        """Returns the samples that a stage produces, and when it runs."""
        words = (
            [count(stage.samples, "sample")]
            if stage.samples
            else [f"{size(stage.sample_bytes)} a sample"] * bool(stage.sample_bytes)
        )
        if stage.kind == "call" and stage.name not in self.consumed:
            words.append(shown_mode(stage.collect))
        words += self.when(stage)
        return line(", ".join(words))

    def when(self, stage: PlacedStage) -> list[str]:
        """Returns which workers a stage calls, and in which steps."""
        words = {"first": ["rank 0"], "peer": ["by peer"]}.get(stage.execute, [])
        words += [f"every {stage.every}"] * (stage.every > 1) + [f"at {stage.when}"] * bool(stage.when)
        return words + [f"lag {stage.lag}"] * (stage.lag > 0)

    # Routes

    def ranks(self, route: Flow) -> Line:
        return line(f"{route.producers or UNKNOWN} -> {route.consumers or UNKNOWN}")

    def dispatch(self, route: Flow) -> Line:
        words = [shown_mode(route.dispatch.mode)]
        if route.dispatch.balance:
            words.append(f"by {route.dispatch.balance}")
        if route.dispatch.home:
            words.append(f"home to {route.dispatch.home}")
        return line(" ".join(words))

    def layouts(self, route: Flow) -> Line:
        """Returns how weights are re-sharded."""
        ends = [
            self.marks.components[name].layout
            for name in (route.producer, route.consumer)
            if name in self.marks.components
        ]
        return line(" => ".join(ends) if len(set(ends)) > 1 else f"{ends[0]}, as it is" if ends else "")

    def shares(self, route: Flow) -> Line:
        """Returns the number of shares if several consumers receive the same one."""
        return (
            line(f"{route.shares} share{'s' * (route.shares > 1)}")
            if route.kind == "data" and route.shares != route.consumers
            else ()
        )

    def over(self, route: Flow, words: Mapping[str, str]) -> Line:
        return line(ink(words[route.over], "faint"))

    def bytes(self, route: Flow) -> Line:
        return line(size(route.bytes)) if route.bytes else ()

    def source(self, route: Flow) -> Line:
        if route.kind == "weights":
            return line("weights")
        return line(ink(route.source, self.style(route.source)))


def _few(words: Sequence[Line], named: int) -> list[Line]:
    """Returns the first words; the routes below a stage name all inputs."""
    return [*words[:named], line(ELLIPSIS)] if len(words) > named else list(words)


# A line for each stage and for each route


def in_full(pipeline: Pipeline, width: int, wraps: bool = True) -> list[Line]:
    """Returns a line for each stage, and below the consumer a line for each route, or several if `wraps`."""
    number = len(str(len(pipeline.topology.stages)))
    room = width - number - 4 - (pipeline.lanes.width + 1 if pipeline.lanes else 0)
    routes = [route for stage in pipeline.shown for route in pipeline.drawn[stage.name]]
    drawn = _routes(pipeline, routes, room - 2, wraps)
    made: list[Line] = []
    for stage, head in zip(pipeline.shown, _heads(pipeline, room), strict=True):
        made.append(line(f"  {stage.after:>{number}}  ", _lane(pipeline, stage.name), head))
        below = line(" " * (number + 4), _lane(pipeline, stage.name, below=True), "  ")
        made += [line(below, each) for route in pipeline.drawn[stage.name] for each in drawn[route.name]]
    return made


def _heads(pipeline: Pipeline, room: int) -> Iterator[Line]:
    """Yields the call and the facts of each stage. The facts are aligned, except behind long calls."""
    facts = []
    for stage in pipeline.shown:
        least = width_of(pipeline.call(stage, 0))
        facts.append(clip(pipeline.facts(stage), max(room // 2, room - 3 - least)))
    calls = [
        pipeline.call(stage, room - width_of(fact) - 3)
        for stage, fact in zip(pipeline.shown, facts, strict=True)
    ]
    widest = room - max(map(width_of, facts)) - 3
    column = max((width_of(call) for call in calls if width_of(call) <= widest), default=0)
    for call, fact in zip(calls, facts, strict=True):
        short = clip(call, room - width_of(fact) - 3 * bool(fact))
        yield line(padded(short, column), "   ", fact) if fact else short


def _lane(pipeline: Pipeline, stage: str, below: bool = False) -> Line:
    if pipeline.lanes is None:
        return ()
    return line((pipeline.lanes.below if below else pipeline.lanes.stages)[stage], " ")


TRANSFER = (Column(), Column(), Column(spare=2), Column(right=True), Column(spare=1))
"""Of `_transfer`; the shares are left out before anything is wrapped."""


def _routes(pipeline: Pipeline, routes: Sequence[Flow], width: int, wraps: bool) -> dict[str, list[Line]]:
    """Returns the lines of each route: its producer and numbers of ranks, aligned, then its transfer in
    columns; in words if the columns do not fit."""
    ranks = [pipeline.ranks(route) for route in routes]
    most = max(width // 2, MIN_NAME + 2 + max(map(width_of, ranks), default=0))
    rows = list(zip(map(pipeline.source, routes), ranks, strict=True))
    ends = columns(rows, (Column(least=MIN_NAME), Column()), most)
    column = max(map(width_of, ends), default=0)
    room = width - column - 2
    data = [route for route in routes if route.kind == "data"]
    words = SHORT if wants([_transfer(pipeline, each, OVER) for each in data], TRANSFER) > room else OVER
    least = wants([_transfer(pipeline, each, words, shares=False) for each in data], TRANSFER)
    in_words = wraps and least > room
    drawn = columns([_transfer(pipeline, each, words) for each in data], TRANSFER, room)
    transfers = {} if in_words else dict(zip((route.name for route in data), drawn, strict=True))
    made = []
    for route, end in zip(routes, ends, strict=True):
        transfer = transfers.get(route.name) or joined(_in_words(pipeline, route, words, room), "  ")
        made.append(line(padded(end, column), "  ", transfer))
    if in_words and max(map(width_of, made)) > width:
        return {route.name: _wrapped(pipeline, route, words, width) for route in routes}
    return {route.name: [each] for route, each in zip(routes, made, strict=True)}


def _wrapped(pipeline: Pipeline, route: Flow, words: Mapping[str, str], width: int) -> list[Line]:
    """Returns the route on as many lines as it needs, with the first one outdented."""
    parts = [pipeline.source(route), pipeline.ranks(route), *_in_words(pipeline, route, words, width - 2)]
    if len(wrapped(parts, width)) == 1:
        return wrapped(parts, width)
    first, *rest = wrapped(parts, width - 2)
    return [first, *(line("  ", each) for each in rest)]


def _in_words(pipeline: Pipeline, route: Flow, words: Mapping[str, str], room: int) -> list[Line]:
    if route.kind == "data":
        return [each for each in _transfer(pipeline, route, words, shares=False) if each]
    parts = (pipeline.layouts(route), pipeline.bytes(route), pipeline.over(route, words))
    full = joined([each for each in parts if each], "  ")
    return [full if width_of(full) <= room else fit(line("re-sharded, ", words[route.over]), room)]


def _transfer(
    pipeline: Pipeline, route: Flow, words: Mapping[str, str], shares: bool = True
) -> tuple[Line, ...]:
    return (
        line(shown_mode(route.collect)),
        pipeline.dispatch(route),
        pipeline.shares(route) if shares else (),
        pipeline.bytes(route),
        pipeline.over(route, words),
    )


# A line for each stage


def in_lines(pipeline: Pipeline, width: int) -> list[Line]:
    """Returns a line for each stage, with its first input."""
    shape = (
        Column(),
        Column(gap=0),
        Column(least=32, gap=0, end=True),
        Column(),
        Column(spare=4),
        Column(least=8),
        Column(right=True, spare=3),
        Column(right=True, spare=1),
        Column(spare=2),
    )
    return columns(list(_rows(pipeline, width)), shape, width)


def _rows(pipeline: Pipeline, width: int) -> Iterator[tuple[Line, ...]]:
    number = len(str(len(pipeline.topology.stages)))
    for stage in pipeline.topology.stages:
        routes = pipeline.inputs[stage.name]
        first = routes[0] if routes else None
        how = ""
        if first:
            how = "weights" if first.kind == "weights" else shown_mode(first.dispatch.mode)
        yield (
            line(f"  {stage.after:>{number}}  "),
            _lane(pipeline, stage.name),
            pipeline.call(stage, width // 2, least=1),
            pipeline.ranks(first) if first else (),
            line(shown_mode(first.collect)) if first and first.kind == "data" else (),
            line(how),
            line(str(stage.samples)) if stage.samples else (),
            pipeline.bytes(first) if first else (),
            line(", ".join(pipeline.when(stage))),
        )
