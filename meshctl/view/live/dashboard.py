"""The picture of a run on a terminal: steps, metrics, groups with their stages, routes, drawn anew eight
times a second.

    grpo-arithmetic  step 57/200 ━━━━━━━━━━━━━━━━━━━━━━━  0:12  6.8 steps/s  21.0 s left

    metric           first    now
    exam.reward       0.05   0.93  ▁▁▂▃▅▆▇█

    group    workers  state    stage        ms
    rollout  2 cpu    running  rollouts   61.0  ███████████████████
                               waits      20.1  ██████
    route               a step    total
    batch -> rollouts   1.2 kB   240 kB

It is a fold over events: `on_event` and `on_row` only count, a thread of rich's draws what was counted, and
nothing ever waits for the terminal. It uses no alternate screen, so the last picture stays. Where the
terminal is low, it shows less.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.view.formatting import bar, duration, milliseconds, number, rate, size, spark
from meshctl.view.live.run_state import GroupTally, State, Tally

REFRESH = 8
"""Pictures a second."""
STYLES: Mapping[State, str] = {
    "waiting": "dim",
    "starting": "yellow",
    "running": "green",
    "done": "cyan",
    "stopped": "yellow",
    "failed": "bold red",
}
COURSE = 24
"""Columns of a metric's course."""
BAR = 20
"""Columns of the longest stage's bar."""


class Dashboard:
    def __init__(self, plan: Plan, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._tally, self._clock, self._began = Tally(plan), clock, clock()
        self._notice, self._closed = "starting", False
        self._lock = threading.Lock()
        self._live = Live(
            get_renderable=self._picture,
            console=Console(file=stream),
            refresh_per_second=REFRESH,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def on_attempt(self, number: int, step: int | None) -> None:
        pass  # its events say the same

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._tally.on_event(event)
            self._notice = notice_after(event, self._notice)

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        with self._lock:
            self._tally.on_row(metrics)
            self._began = min(
                self._began, self._clock() - metrics["time"]
            )  # the run began before this picture did
            if self._notice == "starting":
                self._notice = ""

    def on_end(self, code: int, reason: str) -> None:
        """Leaves a last, short picture: a summary follows, with the times and bytes of the whole run."""
        if not self._closed:
            self._closed = True
            self._live.stop()
            self._live.console.print()

    def _picture(self) -> RenderableType:
        with self._lock:
            elapsed = self._clock() - self._began
            return (
                Picture.last(self._tally, elapsed)
                if self._closed
                else Picture.of(self._tally, elapsed, self._notice)
            )


def notice_after(event: Event, notice: str) -> str:
    """The line below the progress: what the launcher last said."""
    match event.name:
        case "ready" if notice == "starting":
            return ""
        case "resumed":
            return f"continues after step {event.step}" if event.step is not None else "continues"
        case "stopping":
            reason = event.value.get("reason", "")
            return f"stopping: {reason}" if reason else "stopping"
        case "checkpoint":
            return f"checkpoint of step {event.step}"
    return notice


class Picture:
    """What the tally says, drawn for the console's width and height: the first of some pictures that fits."""

    def __init__(self, *choices: list[RenderableType]) -> None:
        self._choices = choices

    @classmethod
    def of(cls, tally: Tally, elapsed: float, notice: str = "") -> Picture:
        """Everything is read out of the tally here: what is drawn later does not change meanwhile."""
        head: list[RenderableType] = [progress(tally, elapsed)]
        if notice:
            head.append(Text(notice, style="yellow", no_wrap=True, overflow="ellipsis"))
        states, seen, spent, sent = groups(tally, stages=False), metrics(tally), groups(tally), routes(tally)
        return cls(
            spaced(head, seen, spent, sent),
            spaced(head, seen, spent),
            spaced(head, seen, states),
            spaced(head, states),
        )

    @classmethod
    def last(cls, tally: Tally, elapsed: float) -> Picture:
        return cls(spaced([progress(tally, elapsed, over=True)], metrics(tally), groups(tally, stages=False)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield next(
            (Group(*parts) for parts in self._choices if self._fits(parts, console, options)),
            Group(*self._choices[-1]),
        )

    def _fits(self, parts: list[RenderableType], console: Console, options: ConsoleOptions) -> bool:
        return len(console.render_lines(Group(*parts), options, pad=False)) < console.height


class Fitted:
    """A drawing of at most `width` columns that is drawn smaller where there is less room: it gives way
    before words do."""

    def __init__(self, draw: Callable[[int], str], width: int) -> None:
        self._draw, self._width = draw, width

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self._width, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._draw(min(self._width, options.max_width)), style="cyan", no_wrap=True)


def spaced(head: list[RenderableType], *tables: Table) -> list[RenderableType]:
    """Those that hold something, with a blank line before each."""
    return [*head, *(part for table in tables if table.row_count for part in (Text(""), table))]


def progress(tally: Tally, elapsed: float, over: bool = False) -> Table:
    """Name, steps, a bar where the number of steps is known, time, speed, and what is left unless the run is
    over."""
    table, steps, speed = grid(expand=True), tally.steps, tally.steps_per_second
    cells: list[RenderableType] = [
        Text(tally.plan.name, style="bold", no_wrap=True, overflow="ellipsis"),
        f"step {tally.step}/{steps}" if steps else f"step {tally.step}",
        ProgressBar(total=steps, completed=tally.step) if steps else "",
        duration(elapsed),
        rate(speed) if speed else "",
        f"{duration((steps - tally.step) / speed)} left" if speed and tally.step < steps and not over else "",
    ]
    for index in range(len(cells)):
        table.add_column(no_wrap=True, ratio=1 if index == 2 else None)
    table.add_row(*cells)
    return table


def metrics(tally: Tally) -> Table:
    table = headed("metric", ">first", ">now", "")
    for name, course in tally.shown():
        course_of = partial(spark, list(course.points))
        now = Text(number(course.last), style="" if course.last is not None else "bold red")
        table.add_row(name, number(course.first), now, Fitted(course_of, COURSE))
    return table


def groups(tally: Tally, stages: bool = True) -> Table:
    table = (
        headed("group", "workers", "state", "stage", ">ms", "")
        if stages
        else headed("group", "workers", "state", "", "", "")
    )
    longest = max((seconds for group in tally.groups.values() for _, seconds in spent(group)), default=0.0)
    for placed in tally.plan.groups:
        group = tally.groups[placed.name]
        rows: list[tuple[RenderableType, ...]] = [
            (
                Text(stage),
                milliseconds(seconds),
                Fitted(partial(bar, seconds / longest if longest else 0), BAR),
            )
            for stage, seconds in (spent(group) if stages else ())
        ]
        named = (
            placed.name,
            f"{placed.workers} {placed.device_type}",
            Text(group.state, style=STYLES[group.state]),
        )
        table.add_row(*named, *(rows[0] if rows else ("", "", "")))
        for row in rows[1:]:
            table.add_row("", "", "", *row)
    return table


def spent(group: GroupTally) -> Iterator[tuple[str, float]]:
    """Where a worker's step goes, lately: its stages, then what it waits for others."""
    for stage, seconds in group.stages.items():
        yield stage, seconds.recent
    if group.step.times:
        yield "waits", group.waits


def routes(tally: Tally) -> Table:
    table = headed("route", ">bytes a step", ">total")
    for name, sent in tally.routes.items():
        if sent:
            table.add_row(name, size(sent / max(1, tally.step)), size(sent))
    return table


def headed(*titles: str) -> Table:
    """A table without lines; `>` before a title puts its column to the right, one without title holds
    drawings."""
    table = grid(show_header=True)
    for title in titles:
        table.add_column(
            title.removeprefix(">"), justify="right" if title.startswith(">") else "left", no_wrap=bool(title)
        )
    return table


def grid(expand: bool = False, show_header: bool = False) -> Table:
    return Table(
        box=None,
        show_header=show_header,
        header_style="dim",
        pad_edge=False,
        padding=(0, 2, 0, 0),
        expand=expand,
    )
