"""Two runs beside each other: their facts and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.text.redaction import redact
from meshctl.view.formatting import duration, number, rate
from meshctl.view.report_page import sections
from meshctl.view.report_page.markup import Child, Markup, tag
from meshctl.view.report_page.plots import legend
from meshctl.view.report_page.record import STEP_SECONDS, Point, RunRecord, Series


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Returns the names of both runs; NAME of the recipe is left out where it is the same for both."""
    names = [record.seen.name for record in records]
    if len({name.partition("/")[0] for name in names}) == 1 and len(set(names)) > 1:
        return [name.partition("/")[2] for name in names]
    return names


def facts(records: Sequence[RunRecord]) -> Markup:
    speeds = (record.seen.state.steps_per_second for record in records)
    rows: list[Sequence[Child]] = [
        ("state", *map(sections.state_word, records)),
        ("steps", *map(sections.steps, records)),
        ("duration", *(duration(record.seen.seconds) for record in records)),
        ("speed", *(rate(speed) if speed else "" for speed in speeds)),
        ("workers", *(str(record.seen.plan.job_size) for record in records)),
        ("restarts", *(str(len(record.seen.state.restarts)) for record in records)),
        ("launched", *(sections.when(record.seen.state.times.began) for record in records)),
        ("why it ended", *(redact(record.seen.state.reason) for record in records)),
    ]
    rows = [row for row in rows if set(row[1:]) - {"", "0"}]
    heads = [
        tag("span", tag("span", class_=f"swatch k{n}"), name) for n, name in enumerate(names_of(records))
    ]
    return sections.table(("", *heads), rows)


def metric_table(records: Sequence[RunRecord]) -> Markup:
    """Returns the first, last, least and greatest value of each metric, a row for each run."""
    rows = list[Sequence[Child]]()
    known = dict.fromkeys(name for record in records for name in record.series)
    for name in sorted(known, key=STEP_SECONDS.__eq__):
        for index, record in enumerate(records):
            swatch = tag("span", class_=f"swatch k{index}", title=names_of(records)[index])
            rows.append((name if index == 0 else "", swatch, *_row(record.series.get(name))))
    heads = ("metric", "run", "first", "last", "least", "at step", "greatest", "at step")
    return sections.table(heads, rows, (2, 3, 4, 5, 6, 7))


def _row(series: Series | None) -> list[str]:
    if series is None:
        return [""] * 6
    return [_value(series.first), _value(series.last), *_with_step(series.low), *_with_step(series.high)]


def _value(point: Point | None) -> str:
    return number(point[1]) if point else ""


def _with_step(point: Point | None) -> tuple[str, str]:
    return (_value(point), f"{point[0]:g}") if point else ("", "")


def curves(records: Sequence[RunRecord]) -> Markup:
    """Returns the legend of the plots."""
    return legend(names_of(records))
