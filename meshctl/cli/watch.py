"""`meshctl watch` shows a run from another terminal until it ends, or a run that is over. It never affects
the run."""

from __future__ import annotations

import sys

from meshctl.cli.jobs import job_state
from meshctl.cli.output import is_closed, problem_of_format, refuse, silence, write
from meshctl.cli.status import NO_RUN, text_of_seen
from meshctl.run.finding import NoRun
from meshctl.text.redaction import redact
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.watching import JsonWatch, WatchView, polled, watch_view
from meshctl.view.reports.text import shown

INTERRUPTED = 130


def watch(word: str, folder: str, format: str) -> int:
    """Returns the exit code of the run, once it is over."""
    if problem := problem_of_format(format):
        return refuse(problem)
    seen: SeenRun | None = None
    try:
        seen = SeenRun.named(word, folder, job_state)
        if not seen.is_live and format == "text":
            return end_of(seen)
        view: WatchView = JsonWatch() if format == "json" else watch_view(seen, sys.stdout)
        seen = _watched(seen, view)
    except NoRun as error:
        return refuse(error, NO_RUN)
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


def _watched(begun: SeenRun, view: WatchView) -> SeenRun:
    """Shows a run until it is over, and returns it then."""
    seen = begun
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
