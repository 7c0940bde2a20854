"""Numbers as text, the same in the plain output, the dashboard, the summary and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshctl.text.english import counted as count
from meshctl.text.english import size as size

__all__ = ["bar", "count", "duration", "milliseconds", "number", "precise", "rate", "size", "spark"]

BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Returns a metric with four significant digits. None stands for a value that is not finite."""
    if value is None:
        return "not finite"
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def precise(seconds: float, other: float = 0.0) -> str:
    """Returns a time with three significant digits, in the unit of the longer one of two times."""
    longer = max(seconds, other)
    if longer >= 60:
        return duration(seconds)
    return f"{seconds:.3g} s" if longer >= 0.1 else f"{1000 * seconds:.3g} ms"


def milliseconds(seconds: float) -> str:
    """Returns milliseconds with two decimals, so that columns are aligned."""
    return f"{seconds * 1000:.2f}"


def rate(steps_per_second: float) -> str:
    return f"{steps_per_second:.3g} steps/s"


def spark(values: Sequence[float], width: int) -> str:
    """Returns the history of a metric as a row of at most `width` bars, each the mean of an equal piece of
    it."""
    if len(values) < 2:
        return ""
    pieces = min(width, len(values))
    bounds = [index * len(values) // pieces for index in range(pieces + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds)]
    low, span = min(means), max(means) - min(means)
    return "".join(
        BARS[int((mean - low) / span * (len(BARS) - 1) + 0.5)] if span else BARS[0] for mean in means
    )


def bar(part: float, width: int) -> str:
    """Returns a bar that fills the fraction `part` (0 to 1) of `width` columns, rounded to half columns. For
    a positive part it has at least half a column."""
    halves = min(max(round(part * width * 2), 1 if part > 0 else 0), width * 2)
    return "━" * (halves // 2) + "╸" * (halves % 2)
