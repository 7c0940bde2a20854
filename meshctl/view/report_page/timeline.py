"""The timeline: one lane for each rank, in which the stages are drawn over time.

The run is drawn in columns: in each one the height of a stage is the share of its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshctl.plan.model import Plan
from meshctl.run.events import restart_line
from meshctl.text.redaction import redact
from meshctl.view.formatting import duration
from meshctl.view.pictures.colors import HUES
from meshctl.view.report_page.markup import Markup, inner, tag
from meshctl.view.report_page.plots import WIDTH, Scale, stretched, x_labels
from meshctl.view.report_page.record import RunRecord, Span, Worker

NOTE = "Each lane is a rank. The height of a color is the share of its time that a stage takes."
COLUMNS = 200
MAX_LANES = 256
OTHERS = {"send": "sends", "wait": "waits for input", "rest": "checkpoints and rest"}
"""Class -> an activity of a worker outside of its stages."""
LANES_PX = 720
"""The height of all lanes together; a lane has between `LEAST_PX` and `MOST_PX`."""
LEAST_PX, MOST_PX, GAP_PX = 5, 22, 2
TOP, AXIS = 14, 20
MAX_MARKS = 200
Box = tuple[float, float, float, float]
"""x, y, width and height."""


@dataclass
class Lanes:
    """The drawn ranks, and their positions."""

    workers: list[Worker]
    height: int = 0
    tops: dict[Worker, int] = field(default_factory=dict)
    bottom: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Lanes:
        """Returns a lane for each rank. Of more than `MAX_LANES` every n-th is drawn."""
        every = -(-plan.job_size // MAX_LANES)
        workers = [
            (group.name, rank)
            for group in plan.groups
            if group.program is None
            for rank in range(0, group.workers, every)
        ]
        lanes = cls(workers)
        lanes.height = min(MOST_PX, max(LEAST_PX, LANES_PX // max(1, len(workers)) - GAP_PX))
        y, before = TOP, ""
        for worker in workers:
            y += 10 if before and worker[0] != before else 0
            before = worker[0]
            lanes.tops[worker] = y
            y += lanes.height + GAP_PX
        lanes.bottom = y
        return lanes

    def labels(self) -> Markup:
        """Returns the names of groups and ranks, as many as there is space for."""
        every, found, before = max(1, -(-12 // (self.height + GAP_PX))), list[Markup](), ""
        for (group, rank), top in self.tops.items():
            middle = top + self.height / 2 + 4
            if group != before:
                name = group if len(group) <= 12 else f"{group[:11]}…"
                found.append(tag("text", name, class_="group", x=0, y=top + max(9, self.height / 2 + 4)))
                before = group
            if rank % every == 0:
                found.append(tag("text", str(rank), x="100%", y=middle, text_anchor="end"))
        return tag("svg", found, class_="lane-names", height=self.bottom + AXIS, aria_hidden="true")


def _legend(colors: Mapping[str, str], boxes: Mapping[str, object], record: RunRecord) -> Markup:
    """Returns the names of the stages and activities with their colors, and the marks of the run."""
    named = [(kind, name) for name, kind in colors.items() if kind in boxes]
    named += [(kind, name) for kind, name in OTHERS.items() if kind in boxes]
    marks = ("checkpoint", "checkpoint"), ("restarted", "restart"), ("fault", "fault")
    named += [(kind, kind) for event, kind in marks if record.events(event)]
    items = [tag("li", tag("span", class_=f"swatch {kind}"), tag("span", name)) for kind, name in named]
    return tag("ul", inner(items), class_="legend")


def whole_run(record: RunRecord) -> Markup:
    """Returns the lanes of the whole run; empty for a run without a step."""
    plan, clock = record.seen.plan, record.clock
    lanes = Lanes.of(plan)
    colors = {stage.name: f"s{number % len(HUES)}" for number, stage in enumerate(plan.stages)}
    length = clock.seconds
    if not record.steps.spans or length <= 0:
        return Markup()
    boxes: dict[str, list[Box]] = {}
    for worker, top in lanes.tops.items():
        for number, shares in sorted(_columns(record, record.steps.spans.get(worker, ()), colors).items()):
            x, width = number * WIDTH / COLUMNS, WIDTH / COLUMNS
            total = sum(shares.values())
            covered = min(1.0, total)
            _append(boxes, "rest", (x, top, width, lanes.height))
            y = float(top + lanes.height)
            for name in sorted(shares):
                part = round(4 * lanes.height * shares[name] * covered / total) / 4 if total else 0.0
                if name == "rest" or not part:
                    continue
                y -= part
                _append(boxes, name, (x, y, width, part))
    scale = Scale(0.0, length)
    ticks = scale.ticks(6, duration)
    paths = [tag("path", class_=kind, d="".join(map(_shape, boxes[kind]))) for kind in sorted(boxes)]
    height = lanes.bottom
    places = [f"{100 * tick.part:.2f}%" for tick in ticks]
    lines = [tag("line", class_="grid", x1=at, x2=at, y1=TOP - 2, y2=height) for at in places]
    drawn = tag(
        "svg",
        (lines, stretched(paths, height), x_labels(ticks, height), list(_marks(record, lanes, scale))),
        class_="lanes",
        width="100%",
        height=height + AXIS,
        role="img",
        aria_label=f"The run: a lane for each of {len(lanes.workers)} ranks",
    )
    names = json.dumps([[f"{group}:{rank}", top] for (group, rank), top in lanes.tops.items()])
    drawn = tag("div", lanes.labels(), drawn, class_="timeline", data_lanes=names, data_seconds=length)
    return inner(tag("p", NOTE, class_="note"), _legend(colors, boxes, record), drawn)


def _columns(
    record: RunRecord, spans: Sequence[Span], colors: Mapping[str, str]
) -> dict[int, dict[str, float]]:
    """Returns column -> class -> its share of the time."""
    found: dict[int, dict[str, float]] = {}
    width = record.clock.seconds / COLUMNS
    for span in spans:
        end = record.clock.at(span.end)
        length = max(span.seconds, 1e-9)
        begin = max(0.0, end - length)
        busy = sum(span.stages.values())
        left = max(0.0, span.seconds - busy)
        sends = min(sum(span.sends.values()), left)
        waits = min(sum(span.waits.values()), left - sends)
        stages = ((colors.get(name, "rest"), seconds) for name, seconds in span.stages.items())
        parts = [*stages, ("send", sends), ("wait", waits), ("rest", left - sends - waits)]
        first, last = int(begin / width), min(COLUMNS - 1, int(end / width))
        for number in range(first, last + 1):
            factor = 1 / width
            if first < last:
                factor *= (min(end, (number + 1) * width) - max(begin, number * width)) / length
            column = found.setdefault(number, {})
            for name, seconds in parts:
                column[name] = column.get(name, 0.0) + seconds * factor
    return found


def _append(boxes: dict[str, list[Box]], kind: str, box: Box) -> None:
    """Adds a box, or makes the last one wider where this one continues it."""
    known = boxes.setdefault(kind, [])
    if known and known[-1][1::2] == box[1::2] and abs(known[-1][0] + known[-1][2] - box[0]) < 1e-6:
        x, y, width, height = known.pop()
        box = (x, y, width + box[2], height)
    known.append(box)


def _marks(record: RunRecord, lanes: Lanes, scale: Scale) -> Iterator[Markup]:
    clock = record.clock
    for event in record.events("checkpoint")[-MAX_MARKS:]:
        text = f"checkpoint of step {event.step}"
        yield _mark("checkpoint", scale.part(clock.at(event.time)), text, lanes)
    for event in record.events("restarted")[-MAX_MARKS:]:
        yield _mark("restart", scale.part(clock.at(event.time)), redact(restart_line(event)), lanes)
    for seam in clock.seams:
        yield _mark("seam", scale.part(seam), f"continued by another launch, at {duration(seam)}", lanes)
    for event in record.faults[:MAX_MARKS]:
        if event.rank is not None and (top := lanes.tops.get((event.group, event.rank))) is not None:
            text = f"{event.group}:{event.rank} failed: {event.value.get('error', '')}"
            where = f"{100 * scale.part(clock.at(event.time)):.2f}%"
            yield tag("circle", tag("title", text), class_="fault", cx=where, cy=top + lanes.height / 2, r=4)


def _mark(kind: str, part: float, text: str, lanes: Lanes) -> Markup:
    where, ends = f"{100 * part:.2f}%", (1, TOP - 3) if kind == "checkpoint" else (0, lanes.bottom)
    return tag("line", tag("title", text), class_=kind, x1=where, x2=where, y1=ends[0], y2=ends[1])


def _shape(box: Box) -> str:
    x, y, width, height = (f"{number:.2f}".rstrip("0").rstrip(".") for number in box)
    return f"M{x} {y}h{width}v{height}h-{width}z"
