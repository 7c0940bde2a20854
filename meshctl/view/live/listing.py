"""The table of `meshctl runs`.

run                   state      step  age   duration     cause
grpo/20260102-030405  running  57/200  12 s  12.4 s
grpo/20260101-120000  failed   13/200  1 d   2 min 3 s    train:1 failed in stage metrics, step 14

If any of the runs has restarted, a column has the number of restarts of each one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run.directory import AskJob, RunDir, Submission, unasked
from meshctl.run.finding import NoRun, launched_at, name_of
from meshctl.run.reading import DAMAGED
from meshctl.text.english import abbreviated
from meshctl.view.formatting import duration
from meshctl.view.live.seen_run import SeenRun, plan_of_run
from meshctl.view.live.summary import table

UNREADABLE = "unreadable"
"""Shown as the state of a run whose files are damaged."""
MIN_CAUSE_LETTERS = 40
"""Columns that a cause needs beside the others."""
INDENT_LETTERS = 4
DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60


@dataclass(frozen=True)
class Row:
    """One row of the table: a run and its state."""

    run: RunDir
    state: str
    step: int = 0
    steps: int = 0
    launched: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    code: int | None = None
    cause: str = ""
    """The reason that the run has ended or does not advance, or the host on which it runs."""
    restarts: int = 0
    """The number of its restarts after failures: whole ones, and those of single groups."""

    def to_data(self) -> dict[str, Any]:
        names: dict[str, Any] = {"run": str(self.run.path), "name": name_of(self.run)}
        return names | {**vars(self), "seconds": round(self.seconds, 3), "run": names["run"]}


def row_of(run: RunDir, now: float, ask: AskJob = unasked) -> Row:
    """Returns the row of a run. It never raises an exception for what a file contains."""
    try:
        plan = plan_of_run(run)
        seen, submission = SeenRun.of(run, plan), Submission.of(run)
        if submission and (seen.is_live or seen.state.times.newest < submission.submitted):
            seen = SeenRun.of(run, plan, ask)
        state, launcher = seen.state, seen.launcher
        cause = seen.where if seen.condition in ("queued", "lost") else state.reason
        if seen.condition == "stalled":
            cause = next(iter(state.stall), "")
        elif seen.is_live and launcher and not launcher.is_here:
            cause = f"on {launcher.host}"
        return Row(
            run,
            seen.condition,
            state.step,
            state.steps,
            state.times.launched or launched_at(run),
            state.seconds(now if seen.is_live else 0.0),
            state.code,
            cause,
            len(state.restarts),
        )
    except (OSError, NoRun, *DAMAGED) as error:
        text = str(error) if isinstance(error, NoRun) else f"{run.path} is damaged"
        return Row(run, UNREADABLE, launched=launched_at(run), cause=text)


def rows_of_runs(runs: Sequence[RunDir], now: float, ask: AskJob = unasked) -> list[Row]:
    """Returns the rows of runs, the newest first."""
    rows = [row_of(run, now, ask) for run in runs]
    return sorted(rows, key=lambda row: (row.launched, row.run.path), reverse=True)


def listing(rows: Sequence[Row], now: float, width: int = 0) -> str:
    """Returns the table. `width` is that of the terminal; 0 for no limit. Where the terminal has no room
    beside the other columns, a cause has a line of its own."""
    has_restarts = any(row.restarts for row in rows)
    cells = [("run", "state", "step", *(["restarts"] if has_restarts else []), "age", "duration")]
    for row in rows:
        step = f"{row.step}/{row.steps}" if row.steps else str(row.step)
        spent = duration(row.seconds) if row.launched else ""
        restarts = [str(row.restarts or "")] if has_restarts else []
        cells.append((name_of(row.run), row.state, step, *restarts, age(row.launched, now), spent))
    lines = [line.removeprefix("  ") for line in table(cells, right=(2, 3) if has_restarts else (2,))]
    others = max(map(len, lines)) + 2
    has_room = not width or width - others >= MIN_CAUSE_LETTERS
    indent = others if has_room else INDENT_LETTERS
    found = [f"{lines[0]:<{others}}cause" if has_room else lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        cause = " ".join(row.cause.split())
        if width:
            cause = abbreviated(cause, max(MIN_CAUSE_LETTERS, width - indent))
        if has_room:
            found.append(f"{line:<{others}}{cause}".rstrip())
        else:
            found += [line, f"{' ' * indent}{cause}"] if cause else [line]
    return "".join(f"{line}\n" for line in found)


def age(then: float, now: float) -> str:
    """Returns how long ago a time was, in its largest unit."""
    if not then:
        return ""
    seconds = max(0.0, now - then)
    for unit, length in (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
