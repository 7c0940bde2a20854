"""`meshctl runs` lists the runs below a folder, `meshctl status` prints the state of one run, `meshctl watch`
shows it until it ends, and `meshctl logs` prints what its workers have written: the lines of several ranks in
the order of their times, `TIME GROUP:RANK: line`. None of them affects a run."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from meshctl.cli.jobs import job_state
from meshctl.cli.output import NO_RUN, Refusal, check_format, is_closed, refuse, silence, why, write
from meshctl.run.finding import NoRun, runs_below
from meshctl.run.logs import LogLine, WorkerLog, as_time, merged, workers_named
from meshctl.text.redaction import redact
from meshctl.view.live.listing import listing, rows_of_runs
from meshctl.view.live.output import printable
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


# The output of workers

POLL_S = 0.5
MAX_LINE_LETTERS = 1 << 16
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def logs(words: Sequence[str], follow: bool, grep: str, since: str, folder: str, format: str) -> int:
    """Prints the logs of the run and the workers that `words` name, both of which may be left out."""
    check_format(format)
    try:
        pattern, first = re.compile(grep), since_of(since, time.time())
    except re.error as error:
        return refuse(f"--grep {grep}: {error}")
    seen, names = _named(words, folder)
    readers = [WorkerLog(seen.run, group, rank, first) for group, rank in workers_of(seen, names)]
    try:
        for lines in _polled(seen, readers) if follow else [merged(readers, is_last=True)]:
            for line in lines:
                if pattern.search(line.text):
                    sys.stdout.write(_shown(line, format))
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            return refuse(f"{error.filename} cannot be read: {why(error)}", NO_RUN)
        if not is_closed(error, sys.stdout):
            raise
        silence(sys.stdout)
    return 0


def _polled(seen: SeenRun, readers: Sequence[WorkerLog]) -> Iterator[Iterator[LogLine]]:
    while seen.is_live:
        yield merged(readers, is_last=False)
        time.sleep(POLL_S)
        seen = seen.again()
    yield merged(readers, is_last=True)


def _shown(line: LogLine, format: str) -> str:
    if format == "json":
        data = {"time": line.time, "group": line.group, "rank": line.rank, "text": line.text}
        return json.dumps(data) + "\n"
    return f"{line.time} {line.worker}: {printable(line.text, MAX_LINE_LETTERS)}\n".lstrip(" ")


def _named(words: Sequence[str], folder: str) -> tuple[SeenRun, Sequence[str]]:
    """Returns the run, and the words that name workers. Raises `NoRun`. A word that names no run may name
    workers of the newest one."""
    try:
        return SeenRun.named(words[0] if words else "", folder, job_state), words[1:]
    except NoRun as error:
        try:
            newest = SeenRun.named("", folder, job_state)
        except NoRun:
            raise error from None
        if words[0].partition(":")[0] not in newest.state.groups:
            raise error from None
        return newest, words


def workers_of(seen: SeenRun, names: Sequence[str]) -> list[tuple[str, int]]:
    """Returns (group, rank) of each worker that GROUP and GROUP:RANK name. Raises `Refusal`."""
    try:
        return workers_named({name: group.workers for name, group in seen.state.groups.items()}, names)
    except ValueError as error:
        raise Refusal(error) from None


def since_of(text: str, now: float) -> str:
    """Returns the time of `--since` as logs have it: so long before now, or a time, which is UTC where it
    names no zone. Raises `Refusal`."""
    if not text:
        return ""
    if ago := _AGO.fullmatch(text):
        return as_time(max(0.0, now - float(ago[1]) * UNITS_S[ago[2]]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"--since {text}: give 90s, 5m, 2h, 1d or a time such as {as_time(now)}") from None
    return as_time((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
