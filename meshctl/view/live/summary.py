"""The summary of a run in a few lines, read from its directory: after its end, a failure, or an interrupt.

grpo-arithmetic: done after 200 steps in 34.1 s (6.84 steps/s): the data of `batch` ended

  exam.reward    0.05 -> 0.93

  group    stage      ms a step
  rollout  rollouts        61.0
           waits           20.1

  route                a step   total
  batch -> rollouts    1.2 kB  240 kB

  run directory: runs/grpo-arithmetic/20260102-030405
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Follower
from meshctl.run.row_file import rows_of
from meshctl.view.formatting import count, duration, milliseconds, number, rate, size
from meshctl.view.live.run_state import GroupState, RunState

INDENT = "  "


def summary(plan: Plan, run: RunDir) -> str:
    """Returns the summary of a run that is over: how it ended, the metrics, the times of stages and routes,
    and the paths of its files. The text ends with a newline."""
    record = recorded(plan, run)
    state = record.state
    blocks = [
        [ending(record)],
        table(
            [(name, f"{number(history.first)} -> {number(history.last)}") for name, history in state.shown()]
        ),
        table(list(phase_rows(state)), right=(2,)),
        table(list(stage_rows(state)), right=(2,)),
        table(list(route_rows(state)), right=(1, 2)),
        [f"{INDENT}{line}" for line in state.restarts],
        [f"{INDENT}warning: {text}" for text in state.warnings],
        list(best_lines(run)),
        [f"{INDENT}{what}: {where}" for what, where in paths(record, run)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


@dataclass(frozen=True)
class Record:
    """Everything that the directory of a run records."""

    state: RunState
    over: Event | None
    """The launcher's last event, if it wrote one."""
    seconds: float
    """The time from the first to the last event of the last attempt."""

    @property
    def done(self) -> bool:
        return self.over is not None and self.over.value.get("code") == 0


def recorded(plan: Plan, run: RunDir) -> Record:
    state, over, began, seconds = RunState(plan), None, None, 0.0
    for event in Follower(run.events).in_order():
        state.on_event(event)
        if began is None or event.name == "launched":
            over, began = None, event.time
        over = event if event.name == "over" else over
        seconds = event.time - began
    for row in rows_of(run.metrics):
        state.on_row(row)
    return Record(state, over, seconds)


def ending(record: Record) -> str:
    """Returns how the run ended, after how many steps, and its duration."""
    state = record.state
    end = "ended without a word of its launcher" if record.over is None else how(record.over)
    words = [f"{state.plan.name}: {end}"]
    if state.last:
        words.append(f"after {count(state.last[0], 'step')} in {duration(state.last[1])}")
    elif record.seconds:
        words.append(f"after {duration(record.seconds)}")
    if state.steps_per_second:
        words.append(f"({rate(state.steps_per_second)})")
    reason = record.over.value.get("reason") if record.over and record.done else ""
    return " ".join(words) + (f": {reason}" if reason else "")


def how(over: Event) -> str:
    """Returns how a run ended, in a word. The cause of a failure is not repeated: the launcher has reported
    it with its traceback."""
    code, reason = over.value.get("code", 0), over.value.get("reason", "")
    if code in (129, 130, 143):
        return f"interrupted ({reason})" if reason else "interrupted"
    return "failed" if code else "done"


def stage_rows(state: RunState) -> Iterator[tuple[str, ...]]:
    if any(group.stages for group in state.groups.values()):
        yield "group", "stage", "mean ms"
    for name, group in state.groups.items():
        for index, (stage, mean) in enumerate(means(group)):
            yield name if index == 0 else "", stage, milliseconds(mean)


def phase_rows(state: RunState) -> Iterator[tuple[str, ...]]:
    """Yields a heading and the phases that took long before the first step; nothing if there are none."""
    if any(group.slow_phases for group in state.groups.values()):
        yield "group", "before step 1", "time"
    for name, group in state.groups.items():
        for index, (phase, seconds) in enumerate(group.slow_phases):
            yield name if index == 0 else "", phase, duration(seconds)


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


def paths(record: Record, run: RunDir) -> Iterator[tuple[str, str]]:
    yield "run directory", str(run.path)
    for group in record.state.plan.groups:
        if group.program:
            yield f"output of {group.name}", str(run.log(group.name, 0).parent)
    if run.latest.exists() and not record.done:
        yield "continue it", f"meshctl launch {shlex.quote(str(run.path))}"


def table(rows: Sequence[tuple[str, ...]], right: Sequence[int] = ()) -> list[str]:
    """Returns aligned columns; those in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        INDENT
        + "  ".join(
            fit(cell, width, index in right)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def fit(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
