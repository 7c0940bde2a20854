"""The output of workers and programs on the screen, each line as `GROUP:RANK: line`: of each group the first
lines of rank 0, all warnings and the last lines, and of ranks that the user follows every line.

    rollout:0: loading 1.2 GB of weights                first lines, of rank 0
    train:3: UserWarning: the cache is too small        a warning, at any time, of any rank
    train:0: more in runs/x/logs/train/0.log            where the first lines end

Of warnings that differ only in numbers, the screen shows one. The files have everything.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.logs import WorkerLog
from meshctl.text.bounded import ESCAPE
from meshctl.view.pictures.text.styled import visible

POLL_S = 0.5
MAX_FIRST_LINES = 20
"""Maximum number of first lines of rank 0 of a group."""
MAX_LAST_LINES = 5
"""Maximum number of last lines of rank 0 of a group, and of each worker that failed."""
MAX_FAILED = 4
"""Maximum number of failed workers whose last lines are shown."""
MAX_WARNINGS = 100
"""Maximum number of different warnings of a group that are shown."""
MAX_RANKS = 1024
"""Maximum number of ranks of a group whose files are read."""
MIN_READ_BYTES, MAX_READ_BYTES = 1 << 16, 1 << 22
"""In each poll, MAX_READ_BYTES is the limit for all files together, but the limit for one file is at least
MIN_READ_BYTES. Lines beyond the limit are skipped."""
MAX_LINE_LETTERS, MAX_FOLLOWED_LETTERS = 200, 1 << 14

WARNING = re.compile(
    r"\w*Warning:|^warning\b|^\W{0,2}(WARN|ERROR|CRITICAL)\b|\b(WARNING|ERROR|CRITICAL)[: ]"
    r"|(^|:)\[?[WE]\d{4} "
)
"""A warning of Python (`UserWarning:`), of a log record, of a compiler or of glog (`[W1122 12:00`)."""
TRACEBACK = "Traceback (most recent call last)"
"""The line from which on the output of a component's worker is not shown: the launcher reports the first
cause with its traceback."""


def printable(line: str, max_letters: int = MAX_LINE_LETTERS) -> str:
    """Returns a log line without escape sequences, control characters, and text that a carriage return
    overwrites."""
    shown = ESCAPE.sub("", line).rstrip("\r \t").rpartition("\r")[2]
    return visible(shown.expandtabs(4)[:max_letters]).rstrip()


Line = tuple[str, str]
"""GROUP:RANK and the text."""


@dataclass
class RankOutput:
    """Selects the lines of a rank for the screen."""

    name: str
    """GROUP:RANK"""
    log: WorkerLog
    is_followed: bool
    is_program: bool
    warnings: set[str]
    """The warnings of its group, with # for numbers."""
    first_left: int
    """The number of first lines that may still be shown."""
    has_raised: bool = False
    """True if it has written a traceback."""
    unseen: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LAST_LINES))
    """Its newest lines, at most `MAX_LAST_LINES`, if they are not on the screen."""

    def new_lines(self, max_bytes: int) -> list[str]:
        """Returns the lines since the last call that are not empty: all of a rank that is followed, and of
        others those in the newest `max_bytes`."""
        new = self.log.new(False, 0 if self.is_followed else max_bytes)
        return [line.text for line in new if line.text.strip()]

    def choose(self, line: str, is_stepping: bool) -> str:
        """Returns what to show for a new line: the line, a hint to the file, or nothing. `is_stepping` means
        that the first step is complete."""
        if self.is_followed:
            return printable(line, MAX_FOLLOWED_LETTERS)
        if line.startswith(TRACEBACK) and not self.is_program:
            self.has_raised = True
            self.unseen.clear()
        text = printable(line)
        if WARNING.search(text):
            kind = re.sub(r"\d+", "#", text)
            is_new = kind not in self.warnings and len(self.warnings) < MAX_WARNINGS
            self.warnings.add(kind)
            if is_new:
                self.unseen.clear()
            return text if is_new else ""
        if self.has_raised:
            return ""
        if self.first_left and (self.is_program or not is_stepping):
            self.first_left -= 1
            self.unseen.clear()
            return text if self.first_left else f"more in {self.log.path}"
        self.unseen.append(text)
        return ""


class Output:
    """The lines of a run for the screen."""

    def __init__(
        self, plan: Plan, run: RunDir, follow: Collection[str] = (), *, from_end: bool = False
    ) -> None:
        """`follow` contains GROUP and GROUP:RANK. `from_end` skips what earlier attempts have written."""
        path = shlex.quote(str(run.log("GROUP", "RANK")))
        self.hint = f"follow a rank: launch --follow GROUP:RANK, or tail -f {path}"
        self.newest: dict[str, tuple[int, str]] = {}
        """Group -> the rank and the text of the newest line that any of its ranks has written."""
        self._is_stepping = False
        self._groups: dict[str, list[RankOutput]] = {}
        for group in plan.groups:
            warnings = set[str]()
            logs = [WorkerLog(run, group.name, rank) for rank in range(min(group.workers, MAX_RANKS))]
            self._groups[group.name] = [
                RankOutput(
                    name := f"{group.name}:{rank}",
                    log,
                    name in follow or group.name in follow,
                    group.program is not None,
                    warnings,
                    0 if rank else MAX_FIRST_LINES + 1,
                )
                for rank, log in enumerate(logs)
            ]
            for log in logs if from_end else ():
                log.skip()
        self._max_bytes = max(MIN_READ_BYTES, MAX_READ_BYTES // sum(map(len, self._groups.values())))

    def end_first_lines(self) -> None:
        """Ends the first lines of components, because the first step is complete."""
        self._is_stepping = True

    def new(self) -> Iterator[Line]:
        """Yields the new lines for the screen."""
        for name, ranks in self._groups.items():
            newest = ""
            for number, rank in enumerate(ranks):
                lines = rank.new_lines(self._max_bytes)
                if lines and not newest:
                    newest = printable(lines[-1])
                    self.newest[name] = number, newest
                for line in lines:
                    if text := rank.choose(line, self._is_stepping):
                        yield rank.name, text

    def last(self, failed: Sequence[tuple[str, int]] = ()) -> Iterator[Line]:
        """Yields the last lines of each rank 0 and of workers that failed, if they are not on the screen."""
        leaders = [(name, 0) for name in self._groups]
        for name, rank in dict.fromkeys([*leaders, *failed[:MAX_FAILED]]):
            for one in self._groups[name][rank : rank + 1]:
                yield from ((one.name, text) for text in one.unseen)
                one.unseen.clear()


class OutputThread:
    """Writes the lines of a run to the screen from a separate thread, twice a second."""

    def __init__(self, output: Output, write: Callable[[str], None]) -> None:
        self._output, self._write = output, write
        self._lock, self._over = threading.Lock(), threading.Event()
        threading.Thread(target=self._follow, name="output", daemon=True).start()

    def poll(self) -> None:
        """Writes the new lines."""
        with self._lock:
            for worker, text in self._output.new():
                self._write(f"{worker}: {text}")

    def on_row(self) -> None:
        """Ends the first lines at the first complete step."""
        self.poll()
        self._output.end_first_lines()

    def end(self, failed: Sequence[tuple[str, int]]) -> None:
        """Writes the remaining new lines, then the last lines. A second call does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self.poll()
        with self._lock:
            for worker, text in self._output.last(failed):
                self._write(f"{worker}: {text}")

    def _follow(self) -> None:
        with suppress(OSError, ValueError):  # the reader of the stream has gone
            while not self._over.wait(POLL_S):
                self.poll()
