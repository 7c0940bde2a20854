"""A plot of one or two curves over the steps: an SVG that is stretched to the page, and its numbers for the
script, which shows the value under the pointer and zooms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.view.formatting import count, number
from meshctl.view.report_page.markup import Markup, inner, tag
from meshctl.view.report_page.scales import HEIGHT, WIDTH, Scale, Tick, scale_of, step_text
from meshctl.view.report_page.series import Point

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
    text: Callable[[float], str] = number
    """Formats a value."""
    x_ticks: Sequence[Tick] | None = None
    unit: str = ""
    """The format of a value in the script: `bytes`, `seconds`, or empty for a number."""
    axis: str = "step"
    """The quantity of `x`: `step`, or `time` in seconds."""

    @property
    def y(self) -> Scale | None:
        values = [value for curve in self.curves for _, value in curve.points if value is not None]
        if values and self.unit == "bytes":
            return Scale(0.0, 1.06 * max(values) or 1.0)
        return scale_of(values) if values else None

    def drawn(self) -> Markup:
        y = self.y
        if y is None:
            return tag("p", "No finite value.", class_="note")
        axis = tag(
            "svg",
            (_y_label(tick) for tick in y.ticks(Y_TICKS, self.text)),
            class_="y-axis",
            height=HEIGHT + AXIS,
            aria_hidden="true",
        )
        area = tag(
            "svg",
            tag("svg", self._inside(y), **_STRETCHED, class_="area"),
            (
                _x_label(tick)
                for tick in self.x_ticks or self.x.ticks(X_TICKS, step_text(self.x.high), least=1.0)
            ),
            class_="plot-area",
            width="100%",
            height=HEIGHT + AXIS,
            role="img",
            aria_label=self._description(),
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
            yield from self._curve(curve, index, y)

    def _curve(self, curve: Curve, index: int, y: Scale) -> Iterator[Markup]:
        yield tag("path", class_=f"curve k{index}", d=path_of(curve.points, self.x, y))
        values = [point for point in curve.points if point[1] is not None]
        if len(values) <= MAX_DOTS:
            dots = "".join(f"{_xy(point, self.x, y)}h0" for point in values)
            yield tag("path", class_=f"dots k{index}", d=dots)
        gaps = "".join(f"M{WIDTH * self.x.part(at):.1f} {HEIGHT - 9}v9" for at in curve.gaps[:MAX_GAP_MARKS])
        if gaps:
            yield tag("path", tag("title", "not finite"), class_="gap", d=gaps)

    def _description(self) -> str:
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
        return f"{self.name}: {'; '.join(words)}{more}"

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


_STRETCHED: dict[str, Any] = {
    "width": "100%",
    "height": HEIGHT,
    "viewBox": f"0 0 {WIDTH} {HEIGHT}",
    "preserveAspectRatio": "none",
}


def path_of(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Returns the path of a curve, with a gap where a value is None."""
    parts, is_down = list[str](), False
    for point in points:
        if point[1] is None:
            is_down = False
            continue
        place = _xy(point, x, y)
        parts.append(place if not is_down else f"L{place[1:]}")
        is_down = True
    return "".join(parts)


def _xy(point: Point, x: Scale, y: Scale) -> str:
    return f"M{WIDTH * x.part(point[0]):.1f} {HEIGHT * (1 - y.part(point[1] or 0.0)):.1f}"


def _short(value: float | None) -> float | None:
    """Returns a number with six significant digits."""
    if value is None or float(value).is_integer():
        return value if value is None else int(value)
    return float(f"{value:.6g}")


def _y_label(tick: Tick) -> Markup:
    return tag("text", tick.text, x="100%", y=HEIGHT * (1 - tick.part) + 4, text_anchor="end")


def _x_label(tick: Tick) -> Markup:
    anchor = "start" if tick.part < 0.03 else "end" if tick.part > 0.97 else "middle"
    return tag("text", tick.text, x=f"{100 * tick.part:.2f}%", y=HEIGHT + 15, text_anchor=anchor)


def legend(names: Sequence[str]) -> Markup:
    """Returns the names of the curves with their colors."""
    items = (
        tag("li", tag("span", class_=f"swatch k{index}"), tag("span", name))
        for index, name in enumerate(names)
    )
    return tag("ul", inner(items), class_="legend")
