"""`meshctl runs` lists the runs below a folder, `meshctl status` prints the state of one run, and `meshctl
watch` shows it until it ends. None of them affects a run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from meshctl.cli.jobs import job_state
from meshctl.cli.output import check_format, is_closed, silence, write
from meshctl.run.finding import runs_below
from meshctl.text.redaction import redact
from meshctl.view.live.listing import listing, rows_of_runs
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.summary import text_of
from meshctl.view.reports.text import shown

INTERRUPTED = 130


def runs(folder: str, format: str) -> int:
    check_format(format)
    now = time.time()
    rows = rows_of_runs(runs_below(Path(folder)), now, job_state)
    if format == "json":
        write(json.dumps({"runs": [row.to_data() for row in rows]}, indent=2) + "\n", sys.stdout)
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        write("".join(f"{shown(line)}\n" for line in listing(rows, now, width).splitlines()), sys.stdout)
    else:
        print(f"{folder} has no runs", file=sys.stderr)
    return 0


def status(word: str, folder: str, format: str) -> int:
    check_format(format)
    seen = SeenRun.named(word, folder, job_state)
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


# Until its end


def watch(word: str, folder: str, format: str) -> int:
    """Returns the exit code of the run, once it is over."""
    check_format(format)
    seen: SeenRun | None = None
    try:
        seen = SeenRun.named(word, folder, job_state)
        if not seen.is_live and format == "text":
            return end_of(seen)
        seen = _watched(seen, format)
    except KeyboardInterrupt:
        if seen is not None:
            print(f"\n{seen.name} goes on; stop it: meshctl stop {seen.name}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not is_closed(error, sys.stdout):
            raise
        silence(sys.stdout)
        return 0
    return end_of(seen) if format == "text" else seen.code


def _watched(begun: SeenRun, format: str) -> SeenRun:
    """Shows a run until it is over, and returns it then."""
    from meshctl.view.live.watching import JsonWatch, polled, watch_view

    view, seen = JsonWatch() if format == "json" else watch_view(begun, sys.stdout), begun
    try:
        for seen in polled(begun):
            if seen.is_live:
                view.show(seen)
        view.end(seen)
    finally:
        view.close()
    return seen


def end_of(seen: SeenRun) -> int:
    """Prints the summary of a run that is over, and its cause, as `launch` does. Returns its exit code. The
    scheduler is asked once more, because it may know why a part of the job has ended."""
    if seen.job and seen.code:
        job_state.forget(seen.run)
        seen = seen.again()
    write(text_of_seen(seen, with_cause=False), sys.stdout)
    if seen.condition == "failed" and seen.state.reason:
        print(f"error: {shown(redact(seen.state.reason))}", file=sys.stderr)
    elif seen.condition == "lost":
        print(f"error: {why_lost(seen)}", file=sys.stderr)
    return seen.code


def why_lost(seen: SeenRun) -> str:
    """Returns why a run is over that has no end."""
    if seen.job:
        return f"the job has ended before its head reported the end of the run: {seen.where}"
    return "the launcher of the run is gone: it was killed"
