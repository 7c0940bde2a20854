"""`meshctl runs` lists the runs below a folder, and `meshctl status` prints the state of one run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshctl.cli.output import refuse, write
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.finding import NoRun, find, runs_below
from meshctl.run.launcher import Launcher
from meshctl.text.redaction import redact
from meshctl.view.live.listing import description, listing, rows_of_runs
from meshctl.view.live.run_state import Condition, RunState
from meshctl.view.live.summary import text_of
from meshctl.view.opened_run import condition_of, plan_of_run, state_of_run
from meshctl.view.reports.text import shown

NO_RUN = 3
"""The exit code where no run is named that can be read."""
FORMATS = ("text", "json")


@dataclass(frozen=True)
class Seen:
    """A run as another process sees it."""

    run: RunDir
    plan: Plan
    state: RunState
    launcher: Launcher | None
    condition: Condition

    @classmethod
    def named(cls, word: str, folder: str) -> Seen:
        """Raises `NoRun`."""
        run = find(word, Path(folder))
        return cls.of(run, plan_of_run(run))

    @classmethod
    def of(cls, run: RunDir, plan: Plan) -> Seen:
        """Raises `NoRun`."""
        state, launcher = state_of_run(plan, run)
        return cls(run, plan, state, launcher, condition_of(run, state, launcher))

    @property
    def is_live(self) -> bool:
        return self.condition in ("running", "stalled", "stopping")

    @property
    def where(self) -> str:
        """Returns a line about a launcher that this machine cannot see; empty if it can."""
        if self.launcher is None or self.launcher.is_here or not self.is_live:
            return ""
        return f"its launcher, process {self.launcher.pid} on {self.launcher.host}, cannot be seen from here"

    def to_data(self) -> dict[str, Any]:
        return description(self.run, self.state, self.condition, self.launcher, time.time())


def check_format(format: str) -> str:
    """Returns why a format is wrong; empty if it is not."""
    return "" if format in FORMATS else f"no format `{format}`: text or json"


def runs(folder: str, format: str) -> int:
    if problem := check_format(format):
        return refuse(problem)
    now = time.time()
    try:
        rows = rows_of_runs(runs_below(Path(folder)), now)
    except NoRun as error:
        return refuse(error, NO_RUN)
    if format == "json":
        write(json.dumps({"runs": [row.to_data() for row in rows]}, indent=2) + "\n", sys.stdout)
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        write("".join(f"{shown(line)}\n" for line in listing(rows, now, width).splitlines()), sys.stdout)
    else:
        print(f"{folder} has no runs", file=sys.stderr)
    return 0


def status(word: str, folder: str, format: str) -> int:
    if problem := check_format(format):
        return refuse(problem)
    try:
        seen = Seen.named(word, folder)
    except NoRun as error:
        return refuse(error, NO_RUN)
    write(text_of_seen(seen) if format == "text" else json.dumps(seen.to_data(), indent=2) + "\n", sys.stdout)
    return 0


def text_of_seen(seen: Seen) -> str:
    """Returns the state of a run as text."""
    text = text_of(seen.state, seen.run, seen.condition, time.time() if seen.is_live else 0.0)
    lines = text.splitlines()
    if seen.condition == "failed" and seen.state.reason:
        lines[1:1] = [f"  cause: {line}" for line in seen.state.reason.splitlines()[:1]]
    if seen.where:
        lines[1:1] = [f"  {seen.where}"]
    return "".join(f"{shown(redact(line))}\n" for line in lines)
