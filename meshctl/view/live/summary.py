"""How a run went, in a few lines, read back from its directory: also after a failure, an interrupt, or
months.

grpo-arithmetic: done after 200 steps in 34.1 s (6.84 steps/s)

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
from dataclasses import dataclass

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Follower
from meshctl.run.metrics import read
from meshctl.view.formatting import count, duration, milliseconds, number, rate, size
from meshctl.view.live.run_state import GroupTally, Tally

INDENT = "  "


def summary(plan: Plan, run: RunDir) -> str:
    """The text, with a newline at its end."""
    record = recorded(plan, run)
    tally = record.tally
    blocks = [
        [ending(record)],
        table([(name, f"{number(course.first)} -> {number(course.last)}") for name, course in tally.shown()]),
        table(list(stage_rows(tally)), right=(2,)),
        table(list(route_rows(tally)), right=(1, 2)),
        [f"{INDENT}{what}: {where}" for what, where in places(record, run)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


@dataclass(frozen=True)
class Record:
    """Everything that was said of a run."""

    tally: Tally
    over: Event | None
    """The launcher's last word, if it had one."""
    seconds: float
    """From the first word to the last of the last attempt."""

    @property
    def done(self) -> bool:
        return self.over is not None and self.over.value.get("code") == 0


def recorded(plan: Plan, run: RunDir) -> Record:
    tally, over, began, seconds = Tally(plan), None, None, 0.0
    for event in sorted(Follower(run.events).new(), key=lambda event: event.time):
        tally.on_event(event)
        if began is None or event.name == "launched":
            over, began = None, event.time
        over = event if event.name == "over" else over
        seconds = event.time - began
    for line in read(run.metrics):
        tally.on_row(line)
    return Record(tally, over, seconds)


def ending(record: Record) -> str:
    """How it ended, after how many steps and how long."""
    tally = record.tally
    said = "ended without a word of its launcher" if record.over is None else how(record.over)
    words = [f"{tally.plan.name}: {said}"]
    if tally.last:
        words.append(f"after {count(tally.last[0], 'step')} in {duration(tally.last[1])}")
    elif record.seconds:
        words.append(f"after {duration(record.seconds)}")
    if tally.steps_per_second:
        words.append(f"({rate(tally.steps_per_second)})")
    return " ".join(words)


def how(over: Event) -> str:
    """One word. The cause of a failure is not here: it is told with its traceback, once."""
    code, reason = over.value.get("code", 0), over.value.get("reason", "")
    if code in (130, 143):
        return f"interrupted ({reason})" if reason else "interrupted"
    return "failed" if code else "done"


def stage_rows(tally: Tally) -> Iterator[tuple[str, ...]]:
    if any(group.stages for group in tally.groups.values()):
        yield "group", "stage", "mean ms"
    for name, group in tally.groups.items():
        for index, (stage, mean) in enumerate(means(group)):
            yield name if index == 0 else "", stage, milliseconds(mean)


def means(group: GroupTally) -> Iterator[tuple[str, float]]:
    """Where a worker's step went: its stages, each by the times that it ran, and what it waited for others."""
    for stage, spent in group.stages.items():
        yield stage, spent.mean
    if group.step.times:
        yield "waits", group.waits_mean


def route_rows(tally: Tally) -> Iterator[tuple[str, ...]]:
    sent = {name: total for name, total in tally.routes.items() if total}
    if sent:
        yield "route", "bytes a step", "total"
    for name, total in sent.items():
        yield name, size(total / max(1, tally.step)), size(total)


def places(record: Record, run: RunDir) -> Iterator[tuple[str, str]]:
    yield "run directory", str(run.path)
    for group in record.tally.plan.groups:
        if group.program:
            yield f"output of {group.name}", str(run.log(group.name, 0).parent)
    if run.latest.exists() and not record.done:
        yield "continue it", f"meshctl launch {shlex.quote(str(run.path))}"


def table(rows: Sequence[tuple[str, ...]], right: Sequence[int] = ()) -> list[str]:
    """Aligned columns; those of `right` end in line."""
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
