"""`meshctl logs` prints what the workers of a run have written: the lines of several ranks in the order of
their times, `TIME GROUP:RANK: line`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from meshctl.cli.jobs import job_state
from meshctl.cli.output import NO_RUN, Refusal, check_format, is_closed, refuse, silence, why
from meshctl.dataclass import dataclass
from meshctl.run.finding import NoRun
from meshctl.run.logs import LogLine, WorkerLog, as_time, merged
from meshctl.text.english import counted, did_you_mean
from meshctl.view.live.output import printable
from meshctl.view.live.seen_run import SeenRun

POLL_S = 0.5
MAX_LINE_LETTERS = 1 << 16
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@dataclass(frozen=True)
class Options:
    follow: bool = False
    grep: str = ""
    """A regular expression of Python."""
    since: str = ""
    folder: str = "runs"
    format: str = "text"


def logs(words: Sequence[str], options: Options) -> int:
    """Prints the logs of the run and the workers that `words` name, both of which may be left out."""
    check_format(options.format)
    try:
        pattern, since = re.compile(options.grep), since_of(options.since, time.time())
    except re.error as error:
        return refuse(f"--grep {options.grep}: {error}")
    seen, names = _named(words, options.folder)
    readers = [WorkerLog(seen.run, group, rank, since) for group, rank in workers_of(seen, names)]
    try:
        for lines in _polled(seen, readers) if options.follow else [merged(readers, is_last=True)]:
            for line in lines:
                if pattern.search(line.text):
                    sys.stdout.write(_shown(line, options.format))
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            return refuse(f"{error.filename} cannot be read: {why(error)}", NO_RUN)
        if not is_closed(error, sys.stdout):
            raise
        silence(sys.stdout)
    return 0


def _polled(seen: SeenRun, readers: Sequence[WorkerLog]) -> Iterator[Iterator[LogLine]]:
    """Yields the new lines until the run is over."""
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
    """Returns (group, rank) of each worker that GROUP and GROUP:RANK name; all of them without names. Raises
    `Refusal`."""
    known = {name: group.workers for name, group in seen.state.groups.items()}
    found = dict[tuple[str, int], None]()
    for name in names or known:
        group, colon, rank = name.partition(":")
        if group not in known:
            raise Refusal(f"the group `{group}` does not exist: {did_you_mean(group, known)}")
        if colon and not (rank.isdecimal() and int(rank) < known[group]):
            raise Refusal(
                f"the rank `{name}` does not exist: `{group}` has {counted(known[group], 'worker')}, "
                "from 0 on"
            )
        found |= dict.fromkeys((group, each) for each in ([int(rank)] if colon else range(known[group])))
    return list(found)


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
