"""Axes: round numbers as ticks, and positions of values."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshctl.dataclass import dataclass
from meshctl.view.formatting import number

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
        step = max(least, round_step((self.high - self.low) / count))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [index * step for index in range(first, last + 1)]
        return [Tick(self.part(value), text(float(f"{value:.12g}"))) for value in values]


def step_text(most: float) -> Callable[[float], str]:
    """Formats a step on an axis up to step `most`, in thousands where the number is long."""
    return (lambda step: f"{step / 1000:.12g}k" if step else "0") if most >= 20_000 else number


def round_step(least: float) -> float:
    """Returns the least of 1, 2, 5, 10, 20, ... (times any power of ten) that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def scale_of(values: list[float]) -> Scale:
    """Returns a scale that shows all values, with a margin."""
    low, high = min(values), max(values)
    span = high - low
    if span <= 1e-12 * max(abs(low), abs(high)):
        span = abs(low) or 1.0
        return Scale(low - span / 2, high + span / 2)
    return Scale(low - MARGIN * span, high + MARGIN * span)


def duration_text(axis: float) -> Callable[[float], str]:
    """Returns the format of seconds on an axis of this length."""
    if axis < 1e-3:
        return lambda seconds: f"{number(seconds * 1e6)} us"
    if axis < 1:
        return lambda seconds: f"{number(seconds * 1e3)} ms"
    if axis < 300:
        return lambda seconds: f"{number(seconds)} s"
    if axis < 18_000:
        return lambda seconds: f"{number(seconds / 60)} min"
    if axis < 400_000:
        return lambda seconds: f"{number(seconds / 3600)} h"
    return lambda seconds: f"{number(seconds / 86400)} d"


def time_ticks(scale: Scale, count: int) -> list[Tick]:
    """Returns ticks of an axis of seconds, at round numbers of its unit."""
    length = scale.high - scale.low
    text = duration_text(length)
    unit = next((unit for unit, most in _UNITS if length < most), 86400.0)
    in_units = Scale(scale.low / unit, scale.high / unit)
    return [Tick(tick.part, text(float(tick.text) * unit)) for tick in in_units.ticks(count, _plain)]


_UNITS = ((1.0, 300), (60.0, 18_000), (3600.0, 400_000))
"""(seconds of a unit, the length of the axis below which it is used)."""


def _plain(value: float) -> str:
    return f"{value:.12g}"
