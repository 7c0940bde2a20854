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
from meshctl.view.formatting import count
from meshctl.view.pictures.colors import HUES, properties
from meshctl.view.pictures.html import as_json, policy
from meshctl.view.pictures.svg import inline_style
from meshctl.view.report_page import sections, timeline
from meshctl.view.report_page.markup import Child, Markup, inner, tag
from meshctl.view.report_page.plots import Curve, Plot, Scale, legend, memory_plots
from meshctl.view.report_page.record import STEP_SECONDS, RunRecord, Series
from meshctl.view.report_page.sections import overrides_of

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='none' "
    "stroke='%234c88d3' stroke-width='2' d='M1 3v11h14M4 11l3-5 3 3 4-6'/%3E%3C/svg%3E"
)

MAX_RESTARTS = 50
"""The number of restarts that a plot marks, the last ones."""


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    content: Markup


def draw(records: Sequence[RunRecord]) -> str:
    """Returns the page of one run, or of two beside each other."""
    metrics, memory = list(metric_plots(records)), list(memory_plots(records))

    def each(of: Callable[[RunRecord], Markup]) -> Markup:
        """Returns a part of one run, or that of both, each with the name of its run."""
        if len(records) == 1:
            return of(records[0])
        parts = ((record.seen.name, of(record)) for record in records)
        return inner(*(sections.details(name, part, is_open=True) for name, part in parts if part))

    found = [
        Section("topology", "Topology", each(sections.topology_picture)),
        Section("time", "Where the time goes", each(times)),
        Section("timeline", "Timeline", each(timeline.whole_run)),
        Section("metrics", "Metrics", metric_section(metrics, records)),
        Section("memory", "Memory", figures(memory, len(metrics), records)),
        Section("faults", "Faults and restarts", each(faults)),
        Section("episodes", "Slowest episodes", each(sections.episode_list)),
        Section("checkpoints", "Checkpoints", each(sections.checkpoint_table)),
        Section("environment", "Environment", each(sections.environment)),
    ]
    if len(records) == 1:
        found.append(Section("recipe", "Recipe", recipe(records[0])))
    else:
        difference = sections.compared_recipes(*(record.recipe for record in records))
        found.insert(0, Section("recipes", "Difference of the recipes", difference))
    title = " and ".join(record.seen.name for record in records)
    return document(title, inner(tag("h1", title), each(about)), found, [*metrics, *memory])


def about(record: RunRecord) -> Markup:
    """Returns the state of a run, why it has ended, and its sizes."""
    state = tag("p", sections.state_word(record))
    return inner(state, sections.cause(record), sections.head_facts(record))


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
        for step, _ in (*one.points[:1], *one.points[-1:])
    ]
    low, high = min(steps, default=0.0), max(steps, default=1.0)
    scale = Scale(low, high) if high > low else Scale(low - 0.5, high + 0.5)
    for name in [*names, STEP_SECONDS]:
        if not any(name in record.series for record in records):
            continue
        series = [(record.series.get(name, Series()), record.seen.name) for record in records]
        found = [Curve(one.points, one.gaps, run) for one, run in series]
        marks = restarts(records[0]) if len(records) == 1 else []
        yield Plot(name, found, scale, marks, unit="seconds" if name == STEP_SECONDS else "")


def restarts(record: RunRecord) -> list[tuple[float, str]]:
    events = record.events("restarted")[-MAX_RESTARTS:]
    return [(float(event.step or 0), redact(restart_line(event))) for event in events]


def metric_section(plots: Sequence[Plot], records: Sequence[RunRecord]) -> Markup:
    if not plots:
        return Markup()
    note = "Drag over a plot to zoom all of them; a double click shows the whole run again."
    label = tag("label", "Show metrics with ", tag("input", type="search", id="filter", size=24))
    tools = tag("div", label, tag("span", note, class_="note"), class_="tools script", hidden=True)
    left = sum(record.left_out for record in records)
    more = tag("p", f"{count(left, 'further metric')} not shown.", class_="note") if left else None
    return inner(tools, figures(plots, 0, records), more)


def figures(plots: Sequence[Plot], first: int, records: Sequence[RunRecord]) -> Markup:
    """Returns plots, of which the first one has this number for the script."""
    drawn = []
    for index, plot in enumerate(plots, first):
        values = (curve.last for curve in plot.curves)
        last = " · ".join("–" if value is None else plot.text(value) for value in values)
        head = [tag("span", plot.name, class_="name"), tag("span", last, class_="last")]
        name, caption = plot.name if plot.axis == "step" else None, tag("figcaption", head)
        drawn.append(tag("figure", caption, plot.drawn(), data_plot=str(index), data_name=name))
    names = [record.seen.name for record in records] if len(records) > 1 else []
    return inner(legend(names), tag("div", drawn, class_="plots")) if drawn else Markup()


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
