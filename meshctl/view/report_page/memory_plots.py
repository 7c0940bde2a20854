"""The memory of workers over time, as plots by group, and the greatest values as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshctl.run.events import Event
from meshctl.view.formatting import count, size
from meshctl.view.report_page.markup import Markup, tag
from meshctl.view.report_page.plots import Curve, Plot
from meshctl.view.report_page.record import RunRecord
from meshctl.view.report_page.scales import Scale, time_ticks
from meshctl.view.report_page.sections import table
from meshctl.view.report_page.series import Point, Series

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
            name = f"{group}: {what}{_of_ranks(records, group)}"
            yield Plot(
                name, curves, scale, text=size, x_ticks=time_ticks(scale, 5), unit="bytes", axis="time"
            )


def _of_ranks(records: Sequence[RunRecord], group: str) -> str:
    workers = max(one.workers for record in records for one in record.seen.plan.groups if one.name == group)
    return f", the most of {count(workers, 'rank')}" if workers > 1 else ""


def _most(record: RunRecord, group: str, key: str) -> list[Point]:
    """Returns (second of the run, bytes of the worker that has most then)."""
    width = record.clock.seconds / PIECES
    present: dict[int, float] = {}
    most: dict[int, float] = {}
    for event in _events(record):
        if event.group == group and isinstance(value := event.value.get(key), (int, float)):
            present[event.rank or 0] = value
            number = int(record.clock.at(event.time) / width)
            most[number] = max(most.get(number, 0.0), *present.values())
    series = Series()
    for number, value in most.items():
        series.add(number * width, value)
    return series.points


def _events(record: RunRecord) -> list[Event]:
    return [event for event in record.events("memory") if event.rank is not None]


def memory_table(record: RunRecord) -> Markup:
    """Returns the greatest values of each group, with the ranks that had them; empty without any."""
    peaks: dict[tuple[str, str], tuple[float, int]] = {}
    for event in _events(record):
        for key in ("peak", "device_peak"):
            if isinstance(value := event.value.get(key), (int, float)):
                known = peaks.get((event.group, key), (-1.0, 0))
                peaks[event.group, key] = max(known, (float(value), -(event.rank or 0)))
    if not peaks:
        return Markup()
    rows = [
        (group.name, *(_peak(peaks.get((group.name, key))) for key in ("peak", "device_peak")))
        for group in record.seen.plan.groups
        if (group.name, "peak") in peaks
    ]
    heads = ("group", "most main memory of a rank", "most device memory of a rank")
    columns = 3 if any(key == "device_peak" for _, key in peaks) else 2
    return table(heads[:columns], [row[:columns] for row in rows], range(1, columns))


def _peak(found: tuple[float, int] | None) -> Markup | str:
    if found is None:
        return ""
    return tag("span", size(found[0]), " ", tag("span", f"rank {-found[1]}", class_="muted"))
