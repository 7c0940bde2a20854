"""The pipeline: stages in the order in which workers run them, who takes from whom, and what each route does
with it.

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
from meshctl.view.pictures.text.lanes import Rails, rails
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
"""Where there is little room."""
UNKNOWN = "?"
"""Instead of a number of ranks that a user's mode decides."""
LEAST = 8
"""Columns of the name of who gives, where there is little room."""
INPUTS = 5
"""Inputs of a call that are named, at most."""


@dataclass(frozen=True)
class Pipeline:
    topology: Topology
    marks: Marks
    only: tuple[Flow, ...] | None = None
    """The routes that are drawn, with the stages at their ends; none for all. A call names all that it takes.
    """
    also: tuple[PlacedStage, ...] = ()
    """Stages that are drawn without a route."""

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
    def taken(self) -> dict[str, list[Flow]]:
        """Stage -> all routes that lead to it."""
        found: dict[str, list[Flow]] = {stage.name: [] for stage in self.topology.stages}
        for route in self.topology.routes:
            found[route.target].append(route)
        return found

    @cached_property
    def drawn(self) -> dict[str, list[Flow]]:
        """Stage -> the routes that are drawn below it."""
        routes = {route.name for route in (self.topology.routes if self.only is None else self.only)}
        return {
            name: [route for route in found if route.name in routes] for name, found in self.taken.items()
        }

    @cached_property
    def given(self) -> set[str]:
        return {route.source for route in self.topology.routes if route.kind == "data"}

    @cached_property
    def rails(self) -> Rails | None:
        names = [stage.name for stage in self.shown]
        pairs = [
            (route.source, route.target)
            for name in names
            for route in self.drawn[name]
            if route.kind == "data"
        ]
        return rails(names, pairs, {name: self.style(name) for name in names})

    def style(self, stage: str) -> str:
        """A stage has the color of the component that runs it."""
        return self.marks.letter(self.stages[stage].component).style.lower()

    # What a stage says

    def call(self, stage: PlacedStage, room: int, least: int = 0) -> Line:
        """rollouts = B sampler.sample(batch), with as many inputs as there is room for, but `least`"""
        said = [self._call(stage, named) for named in range(INPUTS, least - 1, -1)]
        return next((each for each in said if width_of(each) <= room), said[-1])

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
        """batch; [scored, values]; scored, other=rollouts"""
        found: dict[str, list[str]] = {}
        for route in self.taken[stage.name]:
            found.setdefault(route.parameter, []).append(route.source)
        return joined(
            _few([self._input(parameter, sources, named) for parameter, sources in found.items()], named)
        )

    def _input(self, parameter: str, sources: Sequence[str], named: int) -> Line:
        names = _few([line(ink(source, self.style(source))) for source in sources], named)
        said = f"{parameter}=" if parameter not in ("", *sources[:1]) else ""
        return line(said, "[", joined(names), "]") if len(sources) > 1 else line(said, names[0])

    def facts(self, stage: PlacedStage) -> Line:
        """What it gives, and when it runs."""
        words = (
            [count(stage.samples, "sample")]
            if stage.samples
            else [f"{size(stage.sample_bytes)} a sample"] * bool(stage.sample_bytes)
        )
        if stage.kind == "call" and stage.name not in self.given:
            words.append(shown_mode(stage.collect))
        words += self.when(stage)
        return line(", ".join(words))

    def when(self, stage: PlacedStage) -> list[str]:
        """Which workers it calls, and in which steps."""
        words = {"first": ["rank 0"], "peer": ["by peer"]}.get(stage.execute, [])
        words += [f"every {stage.every}"] * (stage.every > 1) + [f"at {stage.when}"] * bool(stage.when)
        return words + [f"lag {stage.lag}"] * (stage.lag > 0)

    # What a route says

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
        """How weights are re-sharded."""
        ends = [
            self.marks.components[name].layout
            for name in (route.producer, route.consumer)
            if name in self.marks.components
        ]
        return line(" => ".join(ends) if len(set(ends)) > 1 else f"{ends[0]}, as it is" if ends else "")

    def shares(self, route: Flow) -> Line:
        """Only where some ranks get the same."""
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
    """Routes below a stage name them all."""
    return [*words[:named], line(ELLIPSIS)] if len(words) > named else list(words)


# Two lines a stage and more


def in_full(pipeline: Pipeline, width: int, wraps: bool = True) -> list[Line]:
    """A line a stage, and one for each route below the stage that takes, or more where one is too short and
    it `wraps`."""
    stages = pipeline.shown
    number, rail = len(str(len(pipeline.topology.stages))), pipeline.rails.width + 1 if pipeline.rails else 0
    room = width - number - 4 - rail
    facts = [
        clip(pipeline.facts(stage), max(room // 2, room - 3 - width_of(pipeline.call(stage, 0))))
        for stage in stages
    ]
    calls = [
        pipeline.call(stage, room - width_of(fact) - 3) for stage, fact in zip(stages, facts, strict=True)
    ]
    least = room - max(map(width_of, facts)) - 3
    heads = _heads(
        calls, facts, max((width_of(call) for call in calls if width_of(call) <= least), default=0), room
    )
    routes = _routes(
        pipeline, [route for stage in stages for route in pipeline.drawn[stage.name]], room - 2, wraps
    )
    made: list[Line] = []
    for stage, head in zip(stages, heads, strict=True):
        made.append(line(f"  {stage.after:>{number}}  ", _rail(pipeline, stage.name), head))
        below = line(" " * (number + 4), _rail(pipeline, stage.name, below=True), "  ")
        made += [line(below, each) for route in pipeline.drawn[stage.name] for each in routes[route.name]]
    return made


def _heads(calls: Sequence[Line], facts: Sequence[Line], wide: int, room: int) -> Iterator[Line]:
    """The facts in line, but behind calls that are too long for it."""
    for call, fact in zip(calls, facts, strict=True):
        short = clip(call, room - width_of(fact) - 3 * bool(fact))
        yield line(padded(short, wide if fact else 0), "   " if fact else "", fact)


def _rail(pipeline: Pipeline, stage: str, below: bool = False) -> Line:
    if pipeline.rails is None:
        return ()
    return line((pipeline.rails.below if below else pipeline.rails.stages)[stage], " ")


WAY = (Column(), Column(), Column(spare=2), Column(right=True), Column(spare=1))
"""What `_way` says; who shares may be left out before anything is wrapped."""


def _routes(pipeline: Pipeline, routes: Sequence[Flow], width: int, wraps: bool) -> dict[str, list[Line]]:
    """Who gives and from how many to how many, in columns for all, then what happens on the way; in words
    where that is too wide."""
    rows = [(pipeline.source(route), pipeline.ranks(route)) for route in routes]
    most = max(width // 2, LEAST + 2 + max((width_of(ranks) for _, ranks in rows), default=0))
    ends = columns(rows, (Column(least=LEAST), Column()), most)
    wide = max(map(width_of, ends), default=0)
    data, room = [route for route in routes if route.kind == "data"], width - wide - 2
    words = SHORT if wants([_way(pipeline, each, OVER) for each in data], WAY) > room else OVER
    apart = wraps and wants([_way(pipeline, each, words, shares=False) for each in data], WAY) > room
    drawn = columns([_way(pipeline, each, words) for each in data], WAY, room)
    ways = {} if apart else dict(zip((route.name for route in data), drawn, strict=True))
    said = [
        ways[route.name] if route.name in ways else joined(_how(pipeline, route, words, room), "  ")
        for route in routes
    ]
    made = [line(padded(end, wide), "  ", each) for end, each in zip(ends, said, strict=True)]
    if apart and max(map(width_of, made)) > width:
        return {route.name: _in_words(pipeline, route, words, width) for route in routes}
    return {route.name: [each] for route, each in zip(routes, made, strict=True)}


def _in_words(pipeline: Pipeline, route: Flow, words: Mapping[str, str], width: int) -> list[Line]:
    """On as many lines as it needs, the first of which stands out."""
    said = [pipeline.source(route), pipeline.ranks(route), *_how(pipeline, route, words, width - 2)]
    if len(wrapped(said, width)) == 1:
        return wrapped(said, width)
    first, *rest = wrapped(said, width - 2)
    return [first, *(line("  ", each) for each in rest)]


def _how(pipeline: Pipeline, route: Flow, words: Mapping[str, str], room: int) -> list[Line]:
    if route.kind == "weights":
        return [_resharded(pipeline, route, words, room)]
    return [each for each in _way(pipeline, route, words, shares=False) if each]


def _resharded(pipeline: Pipeline, route: Flow, words: Mapping[str, str], room: int) -> Line:
    full = joined(
        [
            each
            for each in (pipeline.layouts(route), pipeline.bytes(route), pipeline.over(route, words))
            if each
        ],
        "  ",
    )
    return full if width_of(full) <= room else fit(line("re-sharded, ", words[route.over]), room)


def _way(pipeline: Pipeline, route: Flow, words: Mapping[str, str], shares: bool = True) -> tuple[Line, ...]:
    return (
        line(shown_mode(route.collect)),
        pipeline.dispatch(route),
        pipeline.shares(route) if shares else (),
        pipeline.bytes(route),
        pipeline.over(route, words),
    )


# A line a stage


def in_lines(pipeline: Pipeline, width: int) -> list[Line]:
    """Each with the first route that it takes."""
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
        routes = pipeline.taken[stage.name]
        first = routes[0] if routes else None
        how = ""
        if first:
            how = "weights" if first.kind == "weights" else shown_mode(first.dispatch.mode)
        yield (
            line(f"  {stage.after:>{number}}  "),
            _rail(pipeline, stage.name),
            pipeline.call(stage, width // 2, least=1),
            pipeline.ranks(first) if first else (),
            line(shown_mode(first.collect)) if first and first.kind == "data" else (),
            line(how),
            line(str(stage.samples)) if stage.samples else (),
            pipeline.bytes(first) if first else (),
            line(", ".join(pipeline.when(stage))),
        )
