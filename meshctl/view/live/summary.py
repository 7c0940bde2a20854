"""A run in a few lines, read from its directory: the summary after its end, a failure or an interrupt, and
what `meshctl status` prints of a run that goes on.

grpo-arithmetic: done after 200 steps in 34.1 s (6.84 steps/s): the data of `batch` ended

  exam.reward    0.05 -> 0.93

  group    stage     mean ms  share
  rollout  rollouts    61.00   74 %
           waits       21.44   26 %  for train (metrics)
  train    metrics     82.00   99 %
           waits        0.44    1 %

  `metrics` of train bounds the run: without it a step would take 61.4 ms
  in place of 82.4 ms (25 % less); then `rollouts` of rollout would bound it

  route                a step   total
  batch -> rollouts    1.2 kB  240 kB

  run directory: runs/grpo-arithmetic/20260102-030405
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from meshctl.plan.model import Group
from meshctl.run.directory import RunDir
from meshctl.view.formatting import count, duration, milliseconds, number, rate, size
from meshctl.view.live.run_state import Condition, GroupState, RunState
from meshctl.view.times import COLUMNS, conclusions, rows

INDENT = "  "
MAX_RESTARTS = 8
"""Maximum number of restarts that are listed, the last ones."""


def text_of(state: RunState, run: RunDir, condition: Condition = "lost", now: float = 0.0) -> str:
    """Returns what is known about a run in a few lines: how it ended, the metrics, the times of stages and
    routes, and the paths of its files. `condition` is the state of a run without an end, and `now` the
    present time for one that goes on."""
    is_over, use = state.code is not None or condition == "lost", state.time_use
    # The means of stages are for the time before the second step, and for a run of an earlier version.
    groups = state.groups.items()
    workers: list[tuple[str, ...]] = [("group", "workers", "state", "")]
    for placed in state.plan.groups:
        group = state.groups[placed.name]
        workers.append((placed.name, workers_of(group, placed), group.state, group.phase))
    stages = {name: [(one, milliseconds(mean)) for one, mean in means(group)] for name, group in groups}
    phases = {name: [(one, duration(long)) for one, long in group.slow_phases] for name, group in groups}
    earlier = len(state.restarts[:-MAX_RESTARTS])
    restarts = [*[count(earlier, "earlier restart")] * bool(earlier), *state.restarts[-MAX_RESTARTS:]]
    blocks = [
        [ending(state)]
        if is_over
        else [f"{state.plan.name}: {position(state, condition, now)}", *notices(state, condition)],
        table(
            [(name, f"{number(history.first)} -> {number(history.last)}") for name, history in state.shown()]
        ),
        [] if is_over else table(workers, right=(1,)),
        grouped(("group", "before step 1", "time"), phases),
        table(list(rows(use)), right=(2, 3)) if use else grouped(("group", "stage", "mean ms"), stages),
        [
            f"{INDENT}{line}"
            for text in (conclusions(use) if use else ())
            for line in textwrap.wrap(text, COLUMNS - len(INDENT), break_on_hyphens=False)
        ],
        table(list(route_rows(state)), right=(1, 2)),
        [f"{INDENT}{line}" for line in restarts],
        [f"{INDENT}warning: {text}" for text in state.warnings],
        list(best_lines(run)),
        [f"{INDENT}{what}: {where}" for what, where in paths(state, run, is_over)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def ending(state: RunState) -> str:
    """Returns how the run ended, after how many steps, and its duration."""
    end: str = "ended without a report of its launcher" if state.code is None else state.condition
    if end == "interrupted" and state.reason:
        end += f" ({state.reason})"
    words = [f"{state.plan.name}: {end}"]
    if state.last:
        words.append(f"after {count(state.last[0], 'step')} in {duration(state.last[1])}")
    elif seconds := state.seconds():
        steps = "without a step, " if state.code == 0 and state.plan.stages else ""
        words.append(f"{steps}after {duration(seconds)}")
    if state.steps_per_second:
        words.append(f"({rate(state.steps_per_second)})")
    reason = state.reason if state.code == 0 else ""
    return " ".join(words) + (f": {reason}" if reason else "")


def position(state: RunState, condition: Condition, now: float) -> str:
    """Returns where a run is that goes on: `running, step 57/200, for 12.4 s (6.8 steps/s)`."""
    steps = f"/{state.steps}" if state.steps else ""
    speed = f" ({rate(state.steps_per_second)})" if state.steps_per_second else ""
    for_time = duration(state.seconds(now))
    return f"{condition}, step {state.step}{steps}, for {for_time}{speed}"


def notices(state: RunState, condition: Condition) -> Iterator[str]:
    """Yields the report of a stall, or else the launcher's last report."""
    if condition == "stalled":
        yield from (f"{INDENT}{line}" for line in state.stall)
    elif state.notice:
        yield f"{INDENT}{state.notice}"


def workers_of(group: GroupState, placed: Group) -> str:
    """Returns the number of workers of a group, `3 of 4` if the running attempt lacks some."""
    return str(group.workers) if group.workers == placed.workers else f"{group.workers} of {placed.workers}"


def grouped(heads: tuple[str, ...], rows: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Returns the table of the rows of each group; empty if there are none."""
    found = [(name * (number == 0), *row) for name, own in rows.items() for number, row in enumerate(own)]
    return table([heads, *found], right=(2,)) if found else []


def means(group: GroupState) -> Iterator[tuple[str, float]]:
    """Yields (stage, mean seconds in a step) of each stage of a group, then `waits` with the mean seconds
    outside of all stages."""
    for stage, timing in group.stages.items():
        yield stage, timing.mean
    if group.step.times:
        yield "waits", group.waits_mean


def route_rows(state: RunState) -> Iterator[tuple[str, ...]]:
    sent = {name: total for name, total in state.routes.items() if total}
    if sent:
        yield "route", "bytes a step", "total"
    for name, total in sent.items():
        yield name, size(total / max(1, state.step)), size(total)


def best_lines(run: RunDir) -> Iterator[str]:
    """Yields a line for each of the best checkpoints, the best first."""
    metric, checkpoints = run.read_best()
    for one in checkpoints:
        when = "" if one.value_step == one.step else f", of step {one.value_step}"
        label = "best" if one is checkpoints[0] else "next best"
        yield f"{INDENT}{label} checkpoint: {run.checkpoint(one.step)} ({metric} {number(one.value)}{when})"


def paths(state: RunState, run: RunDir, is_over: bool) -> Iterator[tuple[str, str]]:
    yield "run directory", str(run.path)
    for group in state.plan.groups:
        if group.program:
            yield f"output of {group.name}", str(run.log(group.name, 0).parent)
    if run.trace.exists():
        yield "trace", f"{run.trace} (https://ui.perfetto.dev)"
    if run.latest.exists() and is_over and state.code != 0:
        yield "continue it", f"meshctl launch {shlex.quote(str(run.path))}"


def table(rows: Sequence[tuple[str, ...]], right: Sequence[int] = ()) -> list[str]:
    """Returns aligned columns; those in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        INDENT
        + "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
