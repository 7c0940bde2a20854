"""The page: one file that loads nothing. Its policy forbids the network, and all styles and scripts except
its own, by their hashes. Without scripts, everything is shown but the values under the pointer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from meshctl import __version__
from meshctl.dataclass import dataclass
from meshctl.run import clock
from meshctl.run.events import restart_line
from meshctl.text.redaction import redact
from meshctl.view.formatting import count, duration, number, precise, rate
from meshctl.view.pictures.colors import HUES, properties
from meshctl.view.pictures.html import as_json, policy
from meshctl.view.pictures.svg import inline_style
from meshctl.view.report_page import sections, timeline
from meshctl.view.report_page.markup import Child, Markup, inner, tag
from meshctl.view.report_page.plots import Curve, Plot, Scale, legend, memory_plots
from meshctl.view.report_page.record import STEP_SECONDS, RunRecord, Series
from meshctl.view.report_page.sections import compared_recipes, overrides_of

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='none' "
    "stroke='%234c88d3' stroke-width='2' d='M1 3v11h14M4 11l3-5 3 3 4-6'/%3E%3C/svg%3E"
)


LANES = "Each lane is a rank. The height of a color is the share of its time that a stage takes."
MAX_RESTARTS = 50
"""The number of restarts that a plot marks, the last ones."""


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    content: Markup


def draw(records: Sequence[RunRecord]) -> str:
    """Returns the page of one run, or of two beside each other."""
    return draw_two(records) if len(records) > 1 else draw_one(records[0])


def draw_one(record: RunRecord) -> str:
    plots, lanes = Plots([record]), timeline.whole_run(record)
    episodes = sections.episode_list(record)
    found = [
        Section("topology", "Topology", sections.topology_picture(record)),
        Section("time", "Where the time goes", times(record)),
        Section("timeline", "Timeline", inner(tag("p", LANES, class_="note"), lanes) if lanes else lanes),
        Section("metrics", "Metrics", plots.metrics()),
        Section("memory", "Memory", plots.memory()),
        Section("faults", "Faults and restarts", faults(record)),
        *([Section("episodes", "Slowest episodes", episodes)] if episodes else []),
        Section("checkpoints", "Checkpoints", sections.checkpoint_table(record)),
        Section("environment", "Environment", sections.environment(record)),
        Section("recipe", "Recipe", recipe(record)),
    ]
    head = inner(
        tag("h1", record.seen.name, " ", sections.state_word(record)),
        sections.cause(record),
        sections.head_facts(record),
    )
    return document(record.seen.name, head, found, plots.all)


def draw_two(records: Sequence[RunRecord]) -> str:
    plots, (before, after) = Plots(records), records

    def both(of: Callable[[RunRecord], Markup], is_open: bool = True) -> Markup:
        names = names_of(records)
        parts = [(name, of(record)) for name, record in zip(names, records, strict=True)]
        return inner(*(sections.details(name, part or "No step.", is_open=is_open) for name, part in parts))

    rows = list[Sequence[Child]]()
    known = dict.fromkeys(name for record in records for name in record.series)
    for name in sorted(known, key=STEP_SECONDS.__eq__):
        for index, record in enumerate(records):
            swatch = tag("span", class_=f"swatch k{index}", title=names_of(records)[index])
            one, cells = record.series.get(name, Series()), list[str]()
            for point, has_step in ((one.first, 0), (one.last, 0), (one.low, 1), (one.high, 1)):
                cells += [number(point[1]) if point else "", *[f"{point[0]:g}" if point else ""] * has_step]
            rows.append((name if index == 0 else "", swatch, *cells))
    heads = ("metric", "run", "first", "last", "least", "at step", "greatest", "at step")
    found = [
        Section("recipes", "Difference of the recipes", compared_recipes(before.recipe, after.recipe)),
        Section(
            "metrics", "Metrics", inner(plots.metrics(), sections.table(heads, rows, (2, 3, 4, 5, 6, 7)))
        ),
        Section("time", "Where the time goes", both(times)),
        Section("timeline", "Timeline", both(timeline.whole_run)),
        Section("memory", "Memory", plots.memory()),
        Section("faults", "Faults and restarts", both(faults)),
        Section("environment", "Environment", sections.environments(records)),
        Section("topology", "Topology", both(sections.topology_picture, is_open=False)),
    ]
    title = " and ".join(record.seen.name for record in records)
    return document(title, inner(tag("h1", title), facts_of_both(records)), found, plots.all)


def recipe(record: RunRecord) -> Markup:
    overrides = dict.fromkeys(each for launch in record.launches for each in overrides_of(launch))
    words = [inner(tag("mark", each, class_="mono"), " ") for each in overrides]
    return inner(
        tag("p", "Overrides: ", words, class_="overrides") if words else None,
        tag("pre", record.recipe.rstrip("\n"), class_="recipe", tabindex=0),
    )


def times(record: RunRecord) -> Markup:
    return inner(sections.time_table(record), sections.route_table(record))


def metric_plots(records: Sequence[RunRecord]) -> Iterator[Plot]:
    """Yields a plot for each metric of any of the runs."""
    names = dict.fromkeys(name for record in records for name in record.series if name != STEP_SECONDS)
    steps = [
        step
        for record in records
        for one in record.series.values()
        for step, _ in filter(None, (one.first, one.last))
    ]
    low, high = min(steps, default=0.0), max(steps, default=1.0)
    scale = Scale(low, high) if high > low else Scale(low - 0.5, high + 0.5)
    for name in [*names, STEP_SECONDS]:
        if not any(name in record.series for record in records):
            continue
        series = [(record.series.get(name, Series()), record.seen.name) for record in records]
        found = [Curve(one.points, one.gaps, run) for one, run in series]
        marks = restarts(records[0]) if len(records) == 1 else []
        if name == STEP_SECONDS:
            yield Plot(name, found, scale, marks, precise, unit="seconds")
        else:
            yield Plot(name, found, scale, marks)


def restarts(record: RunRecord) -> list[tuple[float, str]]:
    events = record.events("restarted")[-MAX_RESTARTS:]
    return [(float(event.step or 0), redact(restart_line(event))) for event in events]


class Plots:
    """The plots of the page, numbered for the script."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._records = records
        self._metrics, self._memory = list(metric_plots(records)), list(memory_plots(records))
        self.all = [*self._metrics, *self._memory]

    def metrics(self) -> Markup:
        if not self._metrics:
            return Markup()
        note = "Drag over a plot to zoom all of them; a double click shows the whole run again."
        label = tag("label", "Show metrics with ", tag("input", type="search", id="filter", size=24))
        tools = tag("div", label, tag("span", note, class_="note"), class_="tools script", hidden=True)
        left = sum(record.left_out for record in self._records)
        more = tag("p", f"{count(left, 'further metric')} not shown.", class_="note") if left else None
        return inner(self._legend(), tools, self._figures(self._metrics, 0), more)

    def memory(self) -> Markup:
        if not self._memory:
            return Markup()
        return inner(self._legend(), self._figures(self._memory, len(self._metrics)))

    def _legend(self) -> Markup | None:
        return legend(names_of(self._records)) if len(self._records) > 1 else None

    def _figures(self, plots: Sequence[Plot], first: int) -> Markup:
        figures = []
        for index, plot in enumerate(plots, first):
            values = (curve.last for curve in plot.curves)
            last = " · ".join("–" if value is None else plot.text(value) for value in values)
            names = tag("span", plot.name, class_="name"), tag("span", last, class_="last")
            name, caption = plot.name if plot.axis == "step" else None, tag("figcaption", names)
            figures.append(tag("figure", caption, plot.drawn(), data_plot=str(index), data_name=name))
        return tag("div", figures, class_="plots")


def faults(record: RunRecord) -> Markup:
    found = list(sections.fault_list(record))
    logs, stalls = list(sections.log_list(record)), list(sections.stall_list(record))
    warnings = sections.warning_list(record)
    parts: list[Child] = [sections.attempt_table(record), sections.group_restarts(record), found]
    parts += [tag("h3", "Stalls"), stalls] if stalls else []
    parts += [tag("h3", "Logs"), logs] if logs else []
    parts += [tag("h3", "Warnings"), warnings] if warnings else []
    return inner(*parts) or tag("p", "None.", class_="note")


# The frame


def document(title: str, head: Markup, found: Sequence[Section], plots: Sequence[Plot]) -> str:
    """Returns the whole document. Sections without content are left out."""
    shown = [section for section in found if section.content]
    css, script = style(), f'"use strict";\n{_read("report.js")}'
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in shown]
    header = tag("header", head, tag("nav", links, aria_label="Sections"))
    main = tag(
        "main",
        [tag("section", tag("h2", each.title), each.content, id=each.anchor) for each in shown],
    )
    footer = tag("footer", f"Written by meshctl {__version__} at {sections.when(clock.now())}.")
    numbers = as_json([plot.data() for plot in plots])
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(css, script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n',
            tag("title", f"{title} · meshctl report"),
            f'<link rel="icon" href="{ICON}">\n<style>{css}</style>\n</head>\n<body>\n',
            inner(header, "\n", main, "\n", footer, tag("div", id="tip", hidden=True, aria_hidden="true")),
            f'\n<script type="application/json" id="numbers">{numbers}</script>\n',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def style() -> str:
    stages = "".join(
        f".s{n} {{ fill: var(--h{n}-line); background: var(--h{n}-line) }}\n" for n in range(len(HUES))
    )
    return f"\n:root {{ {properties()}}}\n{stages}{inline_style('.topology')}{_read('report.css')}"


def _read(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


# Two runs beside each other


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Returns the names of both runs; NAME of the recipe is left out where it is the same for both."""
    names = [record.seen.name for record in records]
    if len({name.partition("/")[0] for name in names}) == 1 and len(set(names)) > 1:
        return [name.partition("/")[2] for name in names]
    return names


def facts_of_both(records: Sequence[RunRecord]) -> Markup:
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
