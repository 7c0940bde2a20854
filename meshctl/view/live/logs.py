"""The newest lines of the log files `logs/GROUP/RANK.log`, for the screen before the first step.

The files are only read, by polling, and each call reads a bounded amount: whatever workers print, the run is
not affected.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.view.pictures.text.styled import visible

POLL_S = 0.5
MAX_READ_BYTES = 1 << 16
"""Of one file and call. Of a file that grows faster, the middle is skipped."""
MAX_LINE_LETTERS = 200
MAX_RANKS = 16
"""Ranks of a group whose files are read."""
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""An escape sequence of a terminal: colors, cursor movements, titles."""


class LogTail:
    """Reads one log file as it grows; a file that does not exist or cannot be read has no lines."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self._offset = self._size() if from_end else 0

    def new_lines(self) -> list[str]:
        """Returns the complete lines written since the last call, without escape sequences and empty
        lines."""
        size = self._size()
        start = max(self._offset, size - MAX_READ_BYTES)
        if size <= self._offset:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                text = file.read(size - start)
        except OSError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        if not complete and len(text) < MAX_READ_BYTES:
            return []
        self._offset = start + len(complete or text)
        lines = (complete or text).decode("utf-8", errors="replace").split("\n")
        return [shown for each in lines if (shown := printable(each))]

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0


def printable(line: str) -> str:
    """Returns a log line as a terminal may show it: what a carriage return leaves visible, in one row."""
    shown = ESCAPE.sub("", line).rstrip("\r \t").rpartition("\r")[2]
    return visible(shown.expandtabs(4)[:MAX_LINE_LETTERS]).rstrip()


class GroupLogs:
    """The log files of all groups of a run."""

    def __init__(self, plan: Plan, run: RunDir, *, from_end: bool = False) -> None:
        """`from_end` skips what earlier attempts have written."""
        self.hint = f"follow a rank: tail -f {shlex.quote(str(run.log('GROUP', 'RANK')))}"
        """How a user reads the output of one rank."""
        self._tails = {
            group.name: [
                LogTail(run.log(group.name, rank), from_end=from_end)
                for rank in range(min(group.workers, MAX_RANKS))
            ]
            for group in plan.groups
        }
        self._newest: dict[str, tuple[int, str]] = {}

    def path(self, group: str) -> Path:
        """Returns the log file of rank 0 of a group."""
        return self._tails[group][0].path

    def new_lines(self) -> Iterator[tuple[str, str]]:
        """Yields (group, line) for the new lines of rank 0 of each group."""
        for group, tails in self._tails.items():
            yield from ((group, line) for line in tails[0].new_lines())

    def newest(self) -> dict[str, tuple[int, str]]:
        """Returns group -> (rank, line): the newest line that any of its ranks has written."""
        for group, tails in self._tails.items():
            for rank in reversed(range(len(tails))):
                if lines := tails[rank].new_lines():
                    self._newest[group] = rank, lines[-1]
        return self._newest
