"""The picture of a run on a terminal: steps, metrics, groups with their stages, and routes, drawn eight times
a second.

    grpo-arithmetic  step 57/200 ━━━━━━━━━━━━━━━━━━━━━━━  0:12  6.8 steps/s  21.0 s left
    147 ms a step  train busy 93 %  rollout waits 61 % for train (metrics)

    metric           first    now
    exam.reward       0.05   0.93  ▁▁▂▃▅▆▇█

    group    workers  state    stage        ms
    rollout  2 cpu    running  rollouts   61.0  ███████████████████
                               waits      20.1  ██████
    route               a step    total
    batch -> rollouts   1.2 kB   240 kB

The lines of workers that `output.py` chooses scroll above the picture. Until a group has completed a step,
the picture also shows the newest line that its workers have logged. `on_event` and `on_row` only update the
state of the run, and a thread of rich draws it, so the run never waits for the terminal. The last picture
stays on the terminal. On a terminal with few lines, the picture shows less.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Literal, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.view.formatting import bar, duration, milliseconds, number, rate, spark
from meshctl.view.live.output import Output, OutputThread
from meshctl.view.live.run_state import GroupState, RunState, State
from meshctl.view.live.summary import route_rows, workers_of
from meshctl.view.pictures.text.styled import visible
from meshctl.view.times import parts_of

REFRESH_HZ = 8
STYLES: Mapping[State, str] = {
    "waiting": "dim",
    "starting": "yellow",
    "running": "green",
    "done": "cyan",
    "stopped": "yellow",
    "failed": "bold red",
}
TIMES_S = 2.0
"""Seconds for which the line about where the time goes stays."""
SPARK_COLUMNS = 24
"""Maximum width of the history of a metric."""
BAR_COLUMNS = 20
"""Maximum width of the bar of the longest stage."""


class Dashboard:
    def __init__(
        self,
        plan: Plan,
        stream: TextIO,
        output: Output | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._clock, self._began = RunState(plan), clock, clock()
        self._output = output
        self._where = ""
        """The text shown in place of the launcher's last report."""
        self._times, self._timed_at = "", -TIMES_S
        """The line about where the time goes, and when it was made."""
        self._closed = False
        self._lock = threading.Lock()
        self._live = Live(
            get_renderable=self.picture,
            console=Console(file=stream),
            refresh_per_second=REFRESH_HZ,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)
        self._thread = OutputThread(output, self._print) if output else None

    def on_attempt(self, number: int, step: int | None) -> None:
        with self._lock:
            self._state.on_attempt(number, step)

    def on_event(self, event: Event) -> None:
        if event.name == "stall":
            self._print("\n".join(event.value.get("text", ())))
        with self._lock:
            self._state.on_event(event)

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        if self._thread and self._state.last is None:
            self._thread.on_row()
        with self._lock:
            self._state.on_row(metrics)
            # The run began before this picture did.
            self._began = min(self._began, self._clock() - metrics["time"])

    def on_state(self, state: RunState, elapsed: float, where: str = "") -> None:
        """Replaces the state by a newer one, which another process has folded. `where` is where a job is that
        waits."""
        if state.stalled and state.stall != self._state.stall:
            self._print("\n".join(state.stall))
        if self._thread and state.last and self._state.last is None:
            self._thread.on_row()
        with self._lock:
            self._state, self._where, self._began = state, where, self._clock() - elapsed

    def on_end(self, code: int, reason: str) -> None:
        """Draws a last, short picture. The summary, which follows it, has the times and bytes of the run. A
        second call does nothing."""
        if not self._closed:
            if self._thread:
                self._thread.end(self._state.failed)
            self._closed = True
            self._live.stop()
            self._live.console.print()

    def picture(self) -> RenderableType:
        with self._lock:
            elapsed = self._clock() - self._began
            if self._closed:
                return Picture.last(self._state, elapsed)
            logs = None
            if self._output:
                logs = newest_logs(self._state, dict(self._output.newest), self._output.hint)
            if elapsed - self._timed_at >= TIMES_S:
                use = self._state.time_use
                self._times, self._timed_at = "  ".join(parts_of(use)) if use else "", elapsed
            return Picture.of(self._state, elapsed, self._where or self._state.notice, logs, self._times)

    def _print(self, line: str) -> None:
        self._live.console.print(Text("\n".join(map(visible, line.split("\n")))), soft_wrap=True)


class Picture:
    """Several drawings of the state of a run, from the most to the least detailed. rich prints the first one
    that fits the console."""

    def __init__(self, *choices: list[RenderableType]) -> None:
        self._choices = choices

    @classmethod
    def of(
        cls, state: RunState, elapsed: float, notice: str = "", logs: Table | None = None, times: str = ""
    ) -> Picture:
        """Returns the picture of a running job. It reads everything from the state now, so that the picture
        does not change while it is drawn."""
        head: list[RenderableType] = [progress(state, elapsed)]
        if times:
            head.append(Text(times, style="dim", no_wrap=True, overflow="ellipsis"))
        if notice:
            head.append(Text(visible(notice), style="yellow", no_wrap=True, overflow="ellipsis"))
        states, seen, spent, sent = groups(state, stages=False), metrics(state), groups(state), routes(state)
        output = logs if logs is not None else grid()
        return cls(
            spaced(head, seen, spent, sent, output),
            spaced(head, seen, spent, output),
            spaced(head, seen, states, output),
            spaced(head, seen, states),
            spaced(head, states),
        )

    @classmethod
    def last(cls, state: RunState, elapsed: float) -> Picture:
        return cls(spaced([progress(state, elapsed, over=True)], metrics(state), groups(state, stages=False)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for parts in self._choices:
            if len(console.render_lines(Group(*parts), options, pad=False)) < console.height:
                break
        yield Group(*parts)


class Fitted:
    """A drawing of at most `width` columns. On a narrow terminal it becomes narrower before texts are cut."""

    def __init__(self, draw: Callable[[int], str], width: int) -> None:
        self._draw, self._width = draw, width

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self._width, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._draw(min(self._width, options.max_width)), style="cyan", no_wrap=True)


def spaced(head: list[RenderableType], *tables: Table) -> list[RenderableType]:
    """Returns `head` and those tables that have rows, with a blank line before each table."""
    return [*head, *(part for table in tables if table.row_count for part in (Text(""), table))]


def position(state: RunState) -> str:
    """Returns the step, the planned number of steps, and the source whose data end the run."""
    if not state.steps:
        return f"step {state.step}"
    return f"step {state.step}/{state.steps}" + (f", until `{state.source}` ends" if state.source else "")


def progress(state: RunState, elapsed: float, over: bool = False) -> Table:
    """Returns name, steps, a bar where the number of steps is known, time, speed, and the time left."""
    table, steps, speed = grid(expand=True), state.steps, state.steps_per_second
    cells: list[RenderableType] = [
        Text(state.plan.name, style="bold", no_wrap=True, overflow="ellipsis"),
        position(state),
        ProgressBar(total=steps, completed=state.step) if steps else "",
        duration(elapsed),
        rate(speed) if speed else "",
        f"{duration((steps - state.step) / speed)} left" if speed and state.step < steps and not over else "",
    ]
    for index in range(len(cells)):
        table.add_column(no_wrap=True, ratio=1 if index == 2 else None)
    table.add_row(*cells)
    return table


def metrics(state: RunState) -> Table:
    table = headed("metric", ">first", ">now", "")
    for name, history in state.shown():
        points = partial(spark, list(history.points))
        now = Text(number(history.last), style="" if history.last is not None else "bold red")
        table.add_row(name, number(history.first), now, Fitted(points, SPARK_COLUMNS))
    return table


def groups(state: RunState, stages: bool = True) -> Table:
    table = headed("group", "workers", "state", *(("stage", ">ms", "") if stages else ("", "", "")))
    longest = max((seconds for group in state.groups.values() for _, seconds in spent(group)), default=0.0)
    for placed in state.plan.groups:
        group = state.groups[placed.name]
        rows: list[tuple[RenderableType, ...]] = []
        for stage, seconds in spent(group) if stages else ():
            drawn = Fitted(partial(bar, seconds / longest if longest else 0), BAR_COLUMNS)
            rows.append((Text(stage), milliseconds(seconds), drawn))
        workers = f"{workers_of(group, placed)} {placed.device_type}"
        named = (placed.name, workers, Text(group.state, style=STYLES[group.state]))
        phase = Text(group.phase, style="dim") if stages else ""
        table.add_row(*named, *(rows[0] if rows else (phase, "", "")))
        for row in rows[1:]:
            table.add_row("", "", "", *row)
    return table


def spent(group: GroupState) -> Iterator[tuple[str, float]]:
    """Yields (stage, recent seconds in a step) of each stage of a group, then `waits` with the seconds
    outside of all stages."""
    for stage, seconds in group.stages.items():
        yield stage, seconds.recent
    if group.step.times:
        yield "waits", group.waits


def newest_logs(state: RunState, newest: Mapping[str, tuple[int, str]], hint: str) -> Table:
    """Returns the newest log line of each group that has not run a step, and how to follow one rank."""
    shown = {
        f"{group}:{rank}": line
        for group, (rank, line) in newest.items()
        if not state.groups[group].step.times
    }
    table = grid(show_header=True)
    table.add_column("newest output", overflow="fold")
    for worker, line in shown.items():
        label = worker.ljust(max(map(len, shown)))
        table.add_row(Text.assemble((label, "dim"), "  ", line, no_wrap=True, overflow="ellipsis"))
    if shown:
        table.add_row(Text(hint, style="dim"))
    return table


def routes(state: RunState) -> Table:
    table = headed("route", ">bytes a step", ">total")
    for row in islice(route_rows(state), 1, None):
        table.add_row(*row)
    return table


def headed(*titles: str) -> Table:
    """Returns a table without lines. `>` before a title aligns its column to the right; a column without a
    title holds drawings."""
    table = grid(show_header=True)
    for title in titles:
        side: Literal["right", "left"] = "right" if title.startswith(">") else "left"
        table.add_column(title.removeprefix(">"), justify=side, no_wrap=bool(title))
    return table


def grid(expand: bool = False, show_header: bool = False) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), collapse_padding=False, expand=expand)
    table.show_header, table.header_style = show_header, "dim"
    return table
