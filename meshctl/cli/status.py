"""`meshctl runs` lists the runs below a folder, and `meshctl status` prints the state of one run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from meshctl.cli.jobs import job_state
from meshctl.cli.output import problem_of_format, refuse, write
from meshctl.run.finding import NoRun, runs_below
from meshctl.text.redaction import redact
from meshctl.view.live.listing import listing, rows_of_runs
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.summary import text_of
from meshctl.view.reports.text import shown

NO_RUN = 3
"""The exit code where no run is named that can be read."""


def runs(folder: str, format: str) -> int:
    if problem := problem_of_format(format):
        return refuse(problem)
    now = time.time()
    try:
        rows = rows_of_runs(runs_below(Path(folder)), now, job_state)
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
    if problem := problem_of_format(format):
        return refuse(problem)
    try:
        seen = SeenRun.named(word, folder, job_state)
    except NoRun as error:
        return refuse(error, NO_RUN)
    write(text_of_seen(seen) if format == "text" else json.dumps(seen.to_data(), indent=2) + "\n", sys.stdout)
    return 0


def text_of_seen(seen: SeenRun, with_cause: bool = True) -> str:
    """Returns the state of a run as text."""
    text = text_of(seen.state, seen.run, seen.condition, time.time() if seen.is_live else 0.0)
    lines = text.splitlines()
    if with_cause and seen.condition == "failed" and seen.state.reason:
        lines[1:1] = [f"  cause: {line}" for line in seen.state.reason.splitlines()[:1]]
    if seen.where:
        lines[1:1] = [f"  {seen.where}"]
    return "".join(f"{shown(redact(line))}\n" for line in lines)
