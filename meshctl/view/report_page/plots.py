"""A plot of one or two curves over the steps: an SVG that is stretched to the page, and its numbers for the
script, which shows the value under the pointer and zooms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.view.formatting import count, duration, number, precise, size
from meshctl.view.report_page.markup import Child, Markup, inner, tag
from meshctl.view.report_page.record import Point, RunRecord, Series

WIDTH, HEIGHT = 1000, 150
"""The units of a plot. Its width is stretched to the page; its height is in pixels."""
MARGIN = 0.06
"""The part of the span of all values that a scale adds below and above them."""


@dataclass(frozen=True)
class Tick:
    part: float
    """The position of the tick on the axis, from 0 to 1."""
    text: str


@dataclass(frozen=True)
class Scale:
    low: float
    high: float

    def part(self, value: float) -> float:
        """Returns the position of a value on the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int, text: Callable[[float], str] = number, least: float = 0.0) -> list[Tick]:
        """Returns about `count` ticks at round values, with at least this distance."""
        width = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(width))
        rounded = (factor * power for factor in (1, 2, 5, 10))  # 1, 2, 5, 10, 20, ... times a power of ten
        step = max(least, next(step for step in rounded if step >= width * (1 - 1e-9)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [index * step for index in range(first, last + 1)]
        return [Tick(self.part(value), text(float(f"{value:.12g}"))) for value in values]


def step_text(most: float) -> Callable[[float], str]:
    """Formats a step on an axis up to step `most`, in thousands where the number is long."""
    return (lambda step: f"{step / 1000:.12g}k" if step else "0") if most >= 20_000 else number


TEXTS: Mapping[str, Callable[[float], str]] = {"": number, "seconds": precise, "bytes": size}
"""Unit -> the function that formats a value."""
AXIS = 20
"""Pixels below a plot for the numbers of its axis."""
X_TICKS, Y_TICKS = 5, 4
MAX_DOTS = 60
"""Maximum number of points that are also drawn as dots."""
MAX_GAP_MARKS = 60


@dataclass(frozen=True)
class Curve:
    points: Sequence[Point]
    gaps: Sequence[float] = ()
    """Positions on the axis at which the value was not finite."""
    name: str = ""
    """The color of the curve, if a plot has several."""

    @property
    def last(self) -> float | None:
        return next((value for _, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True)
class Plot:
    name: str
    curves: Sequence[Curve]
    x: Scale
    marks: Sequence[tuple[float, str]] = ()
    """Positions on the axis with a text: the restarts."""
    unit: str = ""
    """The unit of a value, a key of `TEXTS`."""
    axis: str = "step"
    """The quantity of `x`: `step`, or `time` in seconds."""

    @property
    def text(self) -> Callable[[float], str]:
        return TEXTS[self.unit]

    @property
    def x_ticks(self) -> list[Tick]:
        if self.axis == "time":
            return self.x.ticks(X_TICKS, duration)
        return self.x.ticks(X_TICKS, step_text(self.x.high), least=1.0)

    @property
    def y(self) -> Scale | None:
        values = [value for curve in self.curves for _, value in curve.points if value is not None]
        if not values:
            return None
        low, high = min(values), max(values)
        if self.unit == "bytes":
            return Scale(0.0, (1 + MARGIN) * high or 1.0)
        margin = MARGIN * (high - low)
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            margin = abs(low) / 2 or 0.5
        return Scale(low - margin, high + margin)

    def drawn(self) -> Markup:
        y = self.y
        if y is None:
            return tag("p", "No finite value.", class_="note")
        labels = [
            tag("text", tick.text, x="100%", y=HEIGHT * (1 - tick.part) + 4, text_anchor="end")
            for tick in y.ticks(Y_TICKS, self.text)
        ]
        axis = tag("svg", labels, class_="y-axis", height=HEIGHT + AXIS, aria_hidden="true")
        words = []
        for curve in self.curves:
            values = [value for _, value in curve.points if value is not None]
            if values:
                who = f"{curve.name}: " if curve.name else ""
                words.append(
                    f"{who}from {self.text(values[0])} to {self.text(values[-1])}, "
                    f"least {self.text(min(values))}, greatest {self.text(max(values))}"
                )
        gaps = sum(len(curve.gaps) for curve in self.curves)
        more = f"; {count(gaps, 'value')} not finite" if gaps else ""
        area = tag(
            "svg",
            stretched(self._inside(y), HEIGHT),
            x_labels(self.x_ticks, HEIGHT),
            class_="plot-area",
            width="100%",
            height=HEIGHT + AXIS,
            role="img",
            aria_label=f"{self.name}: {'; '.join(words)}{more}",
        )
        return tag("div", axis, area, class_="plot", data_low=y.low, data_high=y.high)

    def _inside(self, y: Scale) -> Iterator[Markup]:
        for tick in y.ticks(Y_TICKS):
            line = HEIGHT * (1 - tick.part)
            yield tag("line", class_="grid", x1=0, x2=WIDTH, y1=line, y2=line)
        for place, text in self.marks:
            at = WIDTH * self.x.part(place)
            yield tag("line", tag("title", text), class_="restart", x1=at, x2=at, y1=0, y2=HEIGHT)
        for index, curve in enumerate(self.curves):
            yield tag("path", class_=f"curve k{index}", d=path_of(curve.points, self.x, y))
            values = [point for point in curve.points if point[1] is not None]
            if len(values) <= MAX_DOTS:
                dots = "".join(f"{_xy(point, self.x, y)}h0" for point in values)
                yield tag("path", class_=f"dots k{index}", d=dots)
            gaps = "".join(
                f"M{WIDTH * self.x.part(at):.1f} {HEIGHT - 9}v9" for at in curve.gaps[:MAX_GAP_MARKS]
            )
            if gaps:
                yield tag("path", tag("title", "not finite"), class_="gap", d=gaps)

    def data(self) -> dict[str, Any]:
        """Returns the numbers of the plot for the script."""
        return {
            "x": [self.x.low, self.x.high],
            "unit": self.unit,
            "axis": self.axis,
            "curves": [
                {
                    "name": curve.name,
                    "x": [_short(at) for at, _ in curve.points],
                    "y": [_short(value) for _, value in curve.points],
                }
                for curve in self.curves
            ],
        }


def stretched(children: Child, height: int) -> Markup:
    """Returns a drawing that is as wide as the page. Its height is in pixels."""
    box = f"0 0 {WIDTH} {height}"
    return tag(
        "svg", children, class_="area", width="100%", height=height, viewBox=box, preserveAspectRatio="none"
    )


def x_labels(ticks: Sequence[Tick], height: int) -> Iterator[Markup]:
    """Yields the numbers below a drawing of this height."""
    for tick in ticks:
        anchor = "start" if tick.part < 0.03 else "end" if tick.part > 0.97 else "middle"
        yield tag("text", tick.text, x=f"{100 * tick.part:.2f}%", y=height + 15, text_anchor=anchor)


def path_of(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Returns the path of a curve, with a gap where a value is None."""
    parts = list[str]()
    before: float | None = None
    for point in points:
        if point[1] is not None:
            place = _xy(point, x, y)
            parts.append(place if before is None else f"L{place[1:]}")
        before = point[1]
    return "".join(parts)


def _xy(point: Point, x: Scale, y: Scale) -> str:
    return f"M{WIDTH * x.part(point[0]):.1f} {HEIGHT * (1 - y.part(point[1] or 0.0)):.1f}"


def _short(value: float | None) -> float | None:
    """Returns a number with six significant digits."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def legend(names: Sequence[str]) -> Markup:
    """Returns the names of the curves with their colors; nothing without names."""
    items = (
        tag("li", tag("span", class_=f"swatch k{index}"), tag("span", name))
        for index, name in enumerate(names)
    )
    return tag("ul", inner(items), class_="legend") if names else Markup()


KINDS = {"resident": "main memory", "device": "device memory"}
"""The key of a `memory` event -> the name of the quantity."""
PIECES = 150


def memory_plots(records: Sequence[RunRecord]) -> Iterator[Plot]:
    """Yields a plot for each group and kind of memory: over time, the worker that has most."""
    length = max((record.clock.seconds for record in records), default=0.0)
    groups = dict.fromkeys(group.name for record in records for group in record.seen.plan.groups)
    if length <= 0:
        return
    scale = Scale(0.0, length)
    for group in groups:
        for key, what in KINDS.items():
            curves = [Curve(_most(record, group, key), name=record.seen.name) for record in records]
            if not any(curve.points for curve in curves):
                continue
            same = [one for record in records for one in record.seen.plan.groups if one.name == group]
            workers = max(one.workers for one in same)
            name = f"{group}: {what}" + (f", the most of {count(workers, 'rank')}" if workers > 1 else "")
            yield Plot(name, curves, scale, unit="bytes", axis="time")


def _most(record: RunRecord, group: str, key: str) -> list[Point]:
    """Returns (second of the run, bytes of the worker that has most then)."""
    width = record.clock.seconds / PIECES
    present: dict[int, float] = {}
    most: dict[int, float] = {}
    for event in record.events("memory"):
        if (
            event.group == group
            and event.rank is not None
            and isinstance(value := event.value.get(key), (int, float))
        ):
            present[event.rank] = value
            number = int(record.clock.at(event.time) / width)
            most[number] = max(most.get(number, 0.0), *present.values())
    series = Series()
    for number, value in most.items():
        series.add(number * width, value)
    return series.points
