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

from collections.abc import Mapping, Sequence
from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import Flow, PlacedStage
from meshctl.topology.modes import shown_mode
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER, transports_of
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import (
    ELLIPSIS,
    Column,
    Line,
    columns,
    joined,
    styled,
    wants,
    words_of,
    wrapped,
)

MAX_LANES = 6
"""Maximum number of lanes side by side. A picture that needs more has no lanes: only the names of inputs show
where values come from."""


@dataclass(frozen=True)
class Lanes:
    stages: Mapping[str, Line]
    """Stage -> the lanes before its name."""
    below: Mapping[str, Line]
    """Stage -> the lanes before the lines below it."""
    width: int


def lanes_of(
    order: Sequence[str], pairs: Sequence[tuple[str, str]], styles: Mapping[str, str]
) -> Lanes | None:
    """Returns the lanes for pairs (producer, consumer); None without pairs, or beyond `MAX_LANES`."""
    index = {name: number for number, name in enumerate(order)}
    edges = {(index[source], index[target]) for source, target in pairs if index[source] < index[target]}
    last_consumer: dict[int, int] = {}
    for source, target in edges:
        last_consumer[source] = max(target, last_consumer.get(source, 0))
    lanes: list[int | None] = []  # lane -> index of its producer, None for an unused lane
    stages, below = list[Line](), list[Line]()
    for stage in range(len(order)):
        inputs = [
            lane for lane, producer in enumerate(lanes) if producer is not None and (producer, stage) in edges
        ]
        new = _free(lanes, max(inputs, default=-1) + 1) if stage in last_consumer else None
        if new is not None:
            lanes[new:] = [stage, *lanes[new + 1 :]]
        if len(lanes) > MAX_LANES:
            return None
        colors = ["" if producer is None else styles[order[producer]] for producer in lanes]
        ends = [producer is not None and last_consumer[producer] <= stage for producer in lanes]
        joints = zip(_joints(lanes, inputs, new, ends), colors, strict=True)
        stages.append(
            Line(*(Line(styled(joint[0], color), styled(joint[1], "faint")) for joint, color in joints))
        )
        lanes = [None if end else producer for producer, end in zip(lanes, ends, strict=True)]
        signs = ("  " if producer is None else "│ " for producer in lanes)
        below.append(Line(*(styled(sign, color) for sign, color in zip(signs, colors, strict=True))))
        while lanes and lanes[-1] is None:
            lanes.pop()
    width = max((line.width for line in below), default=0)
    if not width:
        return None
    to_names = (
        Line(line, styled(("─" if line.text.endswith("─") else " ") * (width - line.width), "faint"))
        for line in stages
    )
    padded = (line.padded(width) for line in below)
    return Lanes(dict(zip(order, to_names, strict=True)), dict(zip(order, padded, strict=True)), width)


def _free(lanes: Sequence[int | None], start: int) -> int:
    """Returns the first unused lane from `start` on."""
    return next((lane for lane in range(start, len(lanes)) if lanes[lane] is None), max(start, len(lanes)))


def _joints(
    lanes: Sequence[int | None], inputs: Sequence[int], new: int | None, ends: Sequence[bool]
) -> list[str]:
    """Returns two characters for each lane in the row of a stage: the joint of the lane, and the line that
    leads to the name of the stage.

    `inputs` are the lanes that the stage consumes, `new` is the lane that begins with it, and `ends` has for
    each lane whether the stage is its last consumer.
    """
    first = min([*inputs, *([] if new is None else [new])], default=len(lanes))
    made = list[str]()
    for lane, producer in enumerate(lanes):
        lead = "─" if lane >= first else " "
        if lane in inputs and lane == first:
            joint = "╰" if ends[lane] else "├"
        elif lane in inputs:
            joint = "┴" if ends[lane] else "┼"
        elif lane == new:
            joint = "┬" if inputs else "╭"
        else:
            joint = lead if producer is None else "│"
        made.append(joint + lead)
    return made


SHORT = {**OVER, "process": "process", "node": "shm", "device": "ipc"}
"""Shorter names of the transports in `OVER`, for narrow pictures."""
UNKNOWN = "?"
"""Shown in place of a number of ranks that a user's mode decides."""
MIN_NAME = 8
"""Minimum width of the name of the producing stage in columns."""
MAX_INPUTS = 5
"""Maximum number of inputs that a call names."""
TRANSFER = (Column(), Column(), Column(spare=1), Column(right=True))
"""The columns collect, dispatch, shares and bytes; the shares are left out if they do not fit."""


@dataclass(frozen=True)
class Pipeline:
    """Some stages and routes of a topology. A call also names inputs whose stages are not among these."""

    marks: Marks
    stages: Sequence[PlacedStage]
    routes: Sequence[Flow]

    @cached_property
    def below(self) -> dict[str, list[Flow]]:
        """Stage -> the routes to it."""
        found: dict[str, list[Flow]] = {stage.name: [] for stage in self.stages}
        for route in self.routes:
            found[route.target].append(route)
        return found

    @cached_property
    def consumed(self) -> set[str]:
        return {route.source for route in self.marks.topology.routes if route.kind == "data"}

    @cached_property
    def styles(self) -> dict[str, str]:
        """Stage -> the color of the component that runs it."""
        stages = self.marks.topology.stages
        return {stage.name: self.marks.letter(stage.component).style.lower() for stage in stages}

    @cached_property
    def when(self) -> dict[str, str]:
        """Stage -> the time at which it, or a stage whose value reaches it, runs."""
        found: dict[str, str] = {}
        for stage in self.marks.topology.stages:
            taken = [found.get(name, "") for given in stage.inputs for name in given.stages]
            found[stage.name] = stage.when or next(filter(None, taken), "")
        return found

    @cached_property
    def lanes(self) -> Lanes | None:
        pairs = [(route.source, route.target) for route in self.routes if route.kind == "data"]
        return lanes_of([stage.name for stage in self.stages], pairs, self.styles)

    @cached_property
    def digits(self) -> int:
        """The width, in columns, of the highest number of a stage."""
        return len(str(len(self.marks.topology.stages)))

    @cached_property
    def indent(self) -> int:
        """The width, in columns, of everything before a stage: its number and the lanes."""
        return self.digits + 4 + (self.lanes.width + 1 if self.lanes else 0)

    # Stages

    def call(self, stage: PlacedStage, space: int) -> Line:
        """Returns `rollouts = B sampler.sample(batch)`, with as many inputs as fit."""
        choices = [self._call(stage, named) for named in range(MAX_INPUTS, -1, -1)]
        return next((each for each in choices if each.width <= space), choices[-1])

    def _call(self, stage: PlacedStage, named: int) -> Line:
        name, producer = styled(stage.name, "bold"), self._component(stage.component)
        if stage.kind == "call":
            found: dict[str, list[str]] = {}
            for given in stage.inputs:
                found.setdefault(given.parameter, []).extend(given.stages)
            inputs = [self._input(parameter, sources, named) for parameter, sources in found.items()]
            return Line(name, " = ", producer, f".{stage.method}(", joined(_few(inputs, named)), ")")
        if (stage.method, stage.to_method) == ("weights", "load_weights"):
            return Line(name, ": ", producer, " => ", self._component(stage.to))
        consumer = self._component(stage.to)
        return Line(name, ": ", producer, f".{stage.method} => ", consumer, f".{stage.to_method}")

    def _component(self, name: str) -> Line:
        return Line(self.marks.letter(name), " ", self.marks.name(name))

    def _input(self, parameter: str, sources: Sequence[str], named: int) -> Line:
        names = _few([Line(styled(source, self.styles.get(source, ""))) for source in sources], named)
        keyword = f"{parameter}=" if parameter not in ("", *sources[:1]) else ""
        return Line(keyword, "[", joined(names), "]") if len(sources) > 1 else Line(keyword, names[0])

    def facts(self, stage: PlacedStage, space: int) -> Line:
        """Returns the samples that a stage produces, which workers it calls, and in which steps. Where there
        is not enough space, the steps are left out of a block, whose other stages name them, and then the
        samples."""
        samples = [f"{size(stage.sample_bytes)} a sample"] if stage.sample_bytes else []
        samples = [count(stage.samples, "sample")] if stage.samples else samples
        is_joined = stage.kind == "call" and stage.name not in self.consumed
        modes = [shown_mode(stage.collect)] if is_joined else []
        modes += {"first": ["rank 0"], "peer": ["by peer"]}.get(stage.execute, [])
        modes += filter(None, [self.marks.topology.repeat_of(stage)])
        samplers = {one.name: one.sampler for one in self.marks.topology.components}
        if stage.kind == "call" and (sampler := samplers[stage.component]):
            modes.append(f"with {self.marks.letter(sampler).text}")
        times = [f"every {stage.every}"] * (stage.every > 1)
        times += [f"at {self.when[stage.name]}"] * bool(self.when[stage.name])
        times += ["ends the run"] * (stage.name in self.marks.topology.ends_run)
        times += [f"lag {stage.lag}"] * (stage.lag > 0)
        choices = [[*samples, *modes, *times], [*modes, *times]]
        if stage.block and samples:
            choices.insert(1, [*samples, *modes])
        lines = [Line(", ".join(words)) for words in choices]
        return next((line for line in lines if line.width <= space), lines[-1]).clip(space)

    # Routes

    def ends(self, route: Flow) -> tuple[Line, Line]:
        """Returns what a route carries, and its numbers of producer and consumer ranks."""
        name = styled(route.source, self.styles.get(route.source, "")) if route.kind == "data" else "weights"
        return Line(name), Line(f"{route.producers or UNKNOWN} -> {route.consumers or UNKNOWN}")

    def transfer(self, route: Flow) -> tuple[Line, ...]:
        """Returns the cells of a route for the columns of `TRANSFER`."""
        has_shares = route.kind == "data" and route.shares != route.consumers
        balance, home = route.dispatch.balance, route.dispatch.home
        by = f" by {balance}" if balance else ""
        return (
            Line(shown_mode(route.collect)),
            Line(shown_mode(route.dispatch.mode) + by + (f" home to {home}" if home else "")),
            Line(count(route.shares, "share") if has_shares else ""),
            Line(size(route.bytes) if route.bytes else ""),
        )

    def resharding(self, route: Flow) -> Line:
        """Returns the layouts of the producer and the consumer of weights, and the bytes."""
        known = self.marks.components
        ends = [known[name].layout for name in (route.producer, route.consumer) if name in known]
        layouts = " => ".join(ends)
        if len(set(ends)) == 1:
            layouts = f"{ends[0]}, as it is"
        return joined(filter(None, (Line(layouts), Line(size(route.bytes) if route.bytes else ""))), "  ")


def _few(words: Sequence[Line], named: int) -> list[Line]:
    """Returns the first `named` words, and an ellipsis for the others. The routes below a stage show all of
    its inputs."""
    return [*words[:named], Line(ELLIPSIS)] if len(words) > named else list(words)


# Levels of detail


def in_full(pipeline: Pipeline, width: int) -> list[Line]:
    """Returns a line for each stage, and below it the lines of each route to the stage."""
    drawn = _routes(pipeline, width - pipeline.indent - 2)
    made: list[Line] = []
    for stage, head in zip(pipeline.stages, in_lines(pipeline, width), strict=True):
        lane = pipeline.lanes.below[stage.name] if pipeline.lanes else Line()
        below = Line(" " * (pipeline.digits + 4), lane).padded(pipeline.indent + 2)
        made.append(head)
        made += [Line(below, each) for route in pipeline.below[stage.name] for each in drawn[route.name]]
    return [*made, *ages(pipeline, width)]


def ages(pipeline: Pipeline, width: int) -> list[Line]:
    """Returns a sentence on the age of the tokens of each block with `take`."""
    texts = (wrapped(words_of(text), width - 4, " ") for text in pipeline.marks.topology.ages)
    return [Line("    " if number else "  ", line) for lines in texts for number, line in enumerate(lines)]


def in_lines(pipeline: Pipeline, width: int) -> list[Line]:
    """Returns a line for each stage: its number, lanes, call and facts. The facts are aligned, except behind
    long calls."""
    space, facts = width - pipeline.indent, []
    for stage in pipeline.stages:
        least = pipeline.call(stage, 0).width
        facts.append(pipeline.facts(stage, max(space // 2, space - 3 - least)))
    spaces = [space - fact.width - 3 for fact in facts]
    calls = [pipeline.call(stage, each) for stage, each in zip(pipeline.stages, spaces, strict=True)]
    column = max((call.width for call in calls if call.width <= min(spaces)), default=0)
    made = []
    for stage, call, fact in zip(pipeline.stages, calls, facts, strict=True):
        lane = Line(pipeline.lanes.stages[stage.name], " ") if pipeline.lanes else Line()
        head = call.clip(space - fact.width - 3 * bool(fact))
        head = Line(head.padded(column), "   ", fact) if fact else head
        made.append(Line(f"  {stage.after:>{pipeline.digits}}  ", lane, head))
    return made


def _routes(pipeline: Pipeline, width: int) -> dict[str, list[Line]]:
    """Returns the lines of each route: its producer and numbers of ranks, its transfer in columns, and its
    transports. A route that does not fit is not aligned; if it still does not fit, it has several lines."""
    ends = [pipeline.ends(route) for route in pipeline.routes]
    longest = max(width // 2, MIN_NAME + 2 + max((ranks.width for _, ranks in ends), default=0))
    heads = columns(ends, (Column(least=MIN_NAME), Column()), longest)
    column = max((head.width for head in heads), default=0)
    data = [route for route in pipeline.routes if route.kind == "data"]
    cells = [pipeline.transfer(route) for route in data]
    for words in (OVER, SHORT):
        space = width - column - 4 - max((len(transports_of(route, words)) for route in data), default=0)
        if wants(cells, TRANSFER) <= space:
            break
    least = wants([(collect, dispatch, Line(), amount) for collect, dispatch, _, amount in cells], TRANSFER)
    rows = columns(cells, TRANSFER, max(space, least))
    aligned = max((row.width for row in rows), default=0)
    transfers = {route.name: row.padded(aligned) for route, row in zip(data, rows, strict=True)}
    made: dict[str, list[Line]] = {}
    for route, end, head in zip(pipeline.routes, ends, heads, strict=True):
        transport = Line(styled(transports_of(route, words), "faint"))
        if route.kind == "data":
            collect, dispatch, _, amount = pipeline.transfer(route)
            parts = [*filter(None, (collect, dispatch, amount)), transport]
            choices = [Line(transfers[route.name], "  ", transport), joined(parts, "  ")]
        else:
            parts = [pipeline.resharding(route), transport]
            choices = [joined(parts, "  "), Line("re-sharded, ", transport.text)]
        fitting = [choice for choice in choices if column + 2 + choice.width <= width]
        lines = [Line(head.padded(column), "  ", (fitting or choices)[0])]
        if not fitting:
            first, *rest = wrapped([*end, *parts], width - 2)
            lines = [first, *(Line("  ", each) for each in rest)]
        made[route.name] = [line.clip(width) for line in lines]
    return made
