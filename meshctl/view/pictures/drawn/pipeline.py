"""The pipeline as a picture: time runs down, a lane for each group, a row for each stage in the order in
which workers run it.

    train                      rollout
    +-----------+              +------------+
    | metrics   |<--+          | rollouts   |
    |  in 4->2  |   +----------|            |
    +-----------+              +------------+

Only one stage is in a row, so a route leaves its stage sideways, runs down beside the lane of the stage that
takes it, and enters at the line that says how many speak and hear: it crosses no box. A sync has two boxes:
it is run by two groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshctl.plan.views.topology import Flow, PlacedStage, Topology
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER
from meshctl.view.pictures.drawn.colours import HUES
from meshctl.view.pictures.drawn.shapes import Picture, escaped

LANES = 5
"""More groups than this share the last lane."""
STAGES = 48
"""More stages than this are a line that counts them."""
BOX, NARROWEST = 232.0, 172.0
"""How wide a box is, and where there is little room for its lanes."""
EDGE = 12.0
"""Of a box, around what stands in it."""
GAP = 20.0
"""Between rows."""
TRACK = 11.0
"""Between routes beside one another."""
LINE = 15.0
"""Height of a small line."""


@dataclass
class Box:
    """A stage, or the taking half of a sync."""

    stage: PlacedStage
    component: str
    method: str
    lane: int
    row: int
    inputs: list[Flow]
    facts: tuple[str, ...]
    """Lines."""
    wide: float
    takes: bool = False
    """Whether it is the taking half."""
    x: float = 0
    y: float = 0

    @property
    def inside(self) -> float:
        return self.wide - 2 * EDGE

    @property
    def height(self) -> float:
        return self.entry(len(self.inputs)) - 9 - self.y

    def entry(self, number: int) -> float:
        """Where its `number`-th input comes in."""
        before = sum(23 + LINE * len(lines_of(flow, self.inside)) for flow in self.inputs[:number])
        return self.y + 50 + 16 * len(self.facts) + before + 14

    @property
    def exit(self) -> float:
        return self.y + 20


@dataclass(frozen=True)
class Wire:
    """A route between two boxes."""

    flow: Flow
    number: int
    """Of the route in the topology."""
    start: Box
    end: Box
    entry: int
    """Which input of the box."""

    @property
    def leftward(self) -> bool:
        return self.start.lane > self.end.lane

    @property
    def beside(self) -> tuple[int, bool]:
        """The space between lanes that it runs down in, by the lane to its right, and whether it is the left
        part of it."""
        return self.end.lane + self.leftward, self.leftward

    @property
    def span(self) -> tuple[float, float]:
        ends = self.start.exit, self.end.entry(self.entry)
        return min(ends), max(ends)


@dataclass
class Lanes:
    """Which group is in which lane, and where the lanes are."""

    names: list[str]
    of: dict[str, int]
    wide: float = BOX
    """Of a box in them."""
    tracks: dict[tuple[int, bool], int] = field(default_factory=dict)
    """Space, and which part of it -> how many routes run there side by side."""

    def gutter(self, number: int) -> float:
        """How wide the space to the left of a lane is."""
        return 26 + TRACK * (self.tracks.get((number, False), 0) + self.tracks.get((number, True), 0))

    def x(self, lane: int) -> float:
        return sum(self.gutter(number) for number in range(lane + 1)) + self.wide * lane

    @property
    def total(self) -> float:
        """How wide all of them are."""
        return self.x(len(self.names))


@dataclass(frozen=True)
class Layout:
    """Where everything is."""

    lanes: Lanes
    boxes: list[Box]
    wires: list[Wire]
    tracks: dict[int, int]
    """Route -> which of the tracks beside its lane."""
    bottom: float
    """Where the last box ends."""


def pipeline(topology: Topology, *, narrow: bool = False, most: int = STAGES, room: float = 0) -> Picture:
    """All stages and routes; `narrow` is one lane for all groups. Empty where there is no stage.

    Beyond `room` the lanes become narrower, as far as what they say can be read.
    """
    stages = sorted(topology.stages, key=lambda stage: stage.after)[:most]
    laid = _laid_out(topology, stages, narrow, BOX)
    if laid.boxes and 0 < room < laid.lanes.total:
        shared = BOX - (laid.lanes.total - room) / len(laid.lanes.names)
        laid = _laid_out(topology, stages, narrow, max(NARROWEST, shared))
    picture = Picture()
    if not narrow:
        _draw_lanes(picture, topology, laid.lanes, laid.bottom)
    for wire in laid.wires:
        _draw_wire(picture, wire, laid.tracks[wire.number])
    for box in laid.boxes:
        _draw_box(picture, topology, box, group=narrow)
    if (left := len(topology.stages) - len(stages)) > 0:
        picture.text(laid.lanes.x(0), laid.bottom + 20, f"and {count(left, 'more stage')}", "m")
        picture.reach(0, laid.bottom + 28)
    picture.reach(laid.lanes.total, 0)
    return picture


def _laid_out(topology: Topology, stages: Sequence[PlacedStage], narrow: bool, wide: float) -> Layout:
    lanes = _lanes(topology, stages, narrow, wide)
    boxes = list(_boxes(topology, stages, lanes))
    bottom = _set_rows(boxes, 0.0 if narrow or not lanes.names else 44.0)
    wires = list(_wires(topology, boxes))
    tracks = _tracks(wires, lanes)
    for box in boxes:
        box.x = lanes.x(box.lane)
    return Layout(lanes, boxes, wires, tracks, bottom)


def _lanes(topology: Topology, stages: Sequence[PlacedStage], narrow: bool, wide: float) -> Lanes:
    group_of = {component.name: component.group for component in topology.components}
    used = {group_of[name] for stage in stages for name in (stage.component, stage.to) if name}
    names = [group.name for group in topology.groups if group.name in used]
    if narrow:
        return Lanes([""], dict.fromkeys(names, 0), wide)
    return Lanes(names[:LANES], {name: min(number, LANES - 1) for number, name in enumerate(names)}, wide)


def _boxes(topology: Topology, stages: Sequence[PlacedStage], lanes: Lanes) -> Iterator[Box]:
    lane = {component.name: lanes.of.get(component.group, 0) for component in topology.components}
    inputs: dict[str, list[Flow]] = {}
    for flow in topology.routes:
        inputs.setdefault(flow.target, []).append(flow)
    for row, stage in enumerate(stages):
        mine = inputs.get(stage.name, [])
        data = [flow for flow in mine if flow.kind == "data"]
        yield Box(
            stage,
            stage.component,
            stage.method,
            lane[stage.component],
            row,
            data,
            _facts(stage, lanes.wide - 2 * EDGE),
            lanes.wide,
        )
        if stage.to:
            weights = [flow for flow in mine if flow.kind == "weights"]
            yield Box(
                stage, stage.to, stage.to_method, lane[stage.to], row, weights, (), lanes.wide, takes=True
            )


def _facts(stage: PlacedStage, room: float) -> tuple[str, ...]:
    """What is to be said of a stage besides its name, in as few lines as it fits."""
    said = [
        f"{stage.samples:,} {'sample' if stage.samples == 1 else 'samples'}" if stage.samples else "",
        f"{size(stage.sample_bytes)} a sample" if stage.sample_bytes and not stage.samples else "",
        f"every {stage.every} steps" if stage.every > 1 else "",
        {"start": "at the start", "end": "at the end", "checkpoint": "at checkpoints"}.get(stage.when, ""),
        f"execute {stage.execute}" if stage.execute != "all" else "",
        f"{count(stage.lag, 'step')} late" if stage.lag else "",
    ]
    lines: list[str] = []
    for fact in filter(None, said):
        if lines and columns_of(longer := f"{lines[-1]} · {fact}") < room:
            lines[-1] = longer
        else:
            lines.append(fact)
    return tuple(lines)


def _set_rows(boxes: Sequence[Box], top: float) -> float:
    """Gives every box its height on the page; returns where the last one ends."""
    y = top
    rows: dict[int, list[Box]] = {}
    for box in boxes:
        rows.setdefault(box.row, []).append(box)
    for row in rows.values():
        stacked = len({box.lane for box in row}) < len(row)
        for number, box in enumerate(row):
            box.y = y
            if stacked or number == len(row) - 1:
                y += (box.height if stacked else max(each.height for each in row)) + GAP
    return y - GAP


def _wires(topology: Topology, boxes: Sequence[Box]) -> Iterator[Wire]:
    giving = {box.stage.name: box for box in boxes if not box.takes}
    numbers = {id(flow): number for number, flow in enumerate(topology.routes)}
    for box in boxes:
        for entry, flow in enumerate(box.inputs):
            if flow.source in giving:
                yield Wire(flow, numbers[id(flow)], giving[flow.source], box, entry)


def _tracks(wires: Sequence[Wire], lanes: Lanes) -> dict[int, int]:
    """Route -> its track. Routes that begin at one stage share one; the shortest are nearest to the lane that
    they enter."""
    taken: dict[tuple[tuple[int, bool], int], list[tuple[float, float, str]]] = {}
    found: dict[int, int] = {}
    for wire in sorted(wires, key=lambda wire: (wire.span[1] - wire.span[0], wire.number)):
        low, high = wire.span
        track = 0
        while any(
            low <= other_high and other_low <= high and name != wire.flow.source
            for other_low, other_high, name in taken.get((wire.beside, track), ())
        ):
            track += 1
        taken.setdefault((wire.beside, track), []).append((low, high, wire.flow.source))
        found[wire.number] = track
        lanes.tracks[wire.beside] = max(lanes.tracks.get(wire.beside, 0), track + 1)
    return found


# Drawing


def _draw_lanes(picture: Picture, topology: Topology, lanes: Lanes, bottom: float) -> None:
    groups = {group.name: group for group in topology.groups}
    for number, name in enumerate(lanes.names):
        x = lanes.x(number)
        picture.rect(x - 8, 0, lanes.wide + 16, bottom + 8, "lane", 8)
        sharing = len(lanes.of) - LANES
        if number == LANES - 1 and sharing > 0:
            picture.text(x, 26, f"{name} and {sharing} more groups", "t b", lanes.wide)
        else:
            group = groups[name]
            size = f"{group.workers:,} on {group.device_type}"
            picture.text(x, 26, name, "t b", lanes.wide - columns_of(size) - 10)
            picture.text(x + lanes.wide, 26, size, "m s end")


def _draw_wire(picture: Picture, wire: Wire, track: int) -> None:
    start, end, y = wire.start, wire.end, wire.end.entry(wire.entry)
    side = end.x + end.wide if wire.leftward else end.x
    across = side + (15 + TRACK * track) * (1 if wire.leftward else -1)
    leaves = start.x + start.wide * (start.lane < end.lane)
    steps = [(leaves, start.exit), (across, start.exit), (across, y), (side, y)]
    picture.path(steps, wire.flow.kind, f' data-route="{wire.number}"')


def _draw_box(picture: Picture, topology: Topology, box: Box, group: bool) -> None:
    component = next(found for found in topology.components if found.name == box.component)
    hue = topology.components.index(component) % len(HUES)
    x, y, right = box.x, box.y, box.x + box.wide - EDGE
    picture.raw(f'<g data-stage="{escaped(box.stage.name)}" data-component="{escaped(box.component)}">')
    picture.rect(x, y, box.wide, box.height, "box", 6)
    wide = picture.chip(x + EDGE, y + 10, component.letter, hue)
    aside = component.group if group else str(box.stage.after)
    picture.text(x + 20 + wide, y + 23.5, box.stage.name, "t b", box.inside - wide - (90 if group else 40))
    picture.text(right, y + 23.5, aside, "m s end", 80 if group else 28)
    picture.text(x + EDGE, y + 43, f"{box.component}.{box.method}", "m s mono", box.inside)
    for number, facts in enumerate(box.facts):
        picture.text(x + EDGE, y + 59 + 16 * number, facts, "m s", box.inside)
    for number, flow in enumerate(box.inputs):
        _draw_input(picture, box, number, flow)
    picture.raw("</g>")


def _draw_input(picture: Picture, box: Box, number: int, flow: Flow) -> None:
    left, right, y = box.x + EDGE, box.x + box.wide - EDGE, box.entry(number) + 4
    picture.raw(f'<g data-input="{escaped(flow.name)}">')
    picture.raw(f'<path class="rule" d="M{left:g} {y - 18:g}h{box.inside:g}"/>')
    name = (
        "weights"
        if flow.kind == "weights"
        else f"{flow.parameter}: {flow.source}"
        if flow.parameter
        else flow.source
    )
    numbers = f"{flow.speakers:,} → {flow.hearers:,}"
    picture.text(left, y, name, "t", box.inside - 9 * len(numbers))
    picture.text(right, y, numbers, "t b end")
    for line, (first, last) in enumerate(lines_of(flow, box.inside)):
        picture.text(left, y + LINE * (line + 1), first, "m s", box.inside - columns_of(last))
        if last:
            picture.text(right, y + LINE * (line + 1), last, "m s end")
    picture.raw("</g>")


def columns_of(text: str) -> float:
    """How much room a small text needs."""
    return 6.7 * len(text)


def lines_of(flow: Flow, room: float) -> list[tuple[str, str]]:
    """What is said of a route under its name: to the left and to the right, in as few lines as it fits."""
    left, right = how(flow), ", ".join([*([size(flow.bytes)] if flow.bytes else []), OVER[flow.over]])
    if columns_of(left + right) < room:
        return [(left, right)]
    lefts = [left] if columns_of(left) <= room else left.split(", ", 1)
    return [*((each, "") for each in lefts), (right, "")]


def how(flow: Flow) -> str:
    """Collect and dispatch of a route: `flatten, slice_dp by tokens`."""
    if flow.kind == "weights":
        return "re-sharded"
    dispatch = flow.dispatch
    by = f" by {dispatch.balance}" if dispatch.balance else ""
    home = f" home of {dispatch.home}" if dispatch.home else ""
    return f"{flow.collect}, {dispatch.mode}{by}{home}"
