"""The log files `logs/GROUP/RANK.log` of a run, read as they grow.

The files are only read, by polling, and each call reads a bounded amount: whatever workers print, the run is
not affected.
"""

from __future__ import annotations

import os
from pathlib import Path

from meshctl.text.bounded import ESCAPE
from meshctl.view.pictures.text.styled import visible

MAX_LINE_LETTERS = 200


class LogTail:
    """Reads one log file as it grows; a file that does not exist or cannot be read has no lines."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self.has_skipped = False
        """Whether the file has grown faster than it was read, so that lines are missing."""
        self._offset = self._size() if from_end else 0

    def new_lines(self, max_bytes: int, *, is_complete: bool = False) -> list[str]:
        """Returns the complete lines that were written since the last call, without empty lines.

        If more than `max_bytes` were written, the result is the newest lines, and older lines are skipped.
        With `is_complete`, it is the oldest lines, and the next call continues after them.
        """
        size = self._size()
        if size <= self._offset:
            return []
        start = self._offset if is_complete else max(self._offset, size - max_bytes)
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                text = file.read(min(size - start, max_bytes))
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and len(text) < max_bytes:
            return []
        self.has_skipped |= start > self._offset
        self._offset = start + len(whole or text)
        return [
            line for line in (whole or text).decode("utf-8", errors="replace").split("\n") if line.strip()
        ]

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0


def printable(line: str, max_letters: int = MAX_LINE_LETTERS) -> str:
    """Returns a log line without escape sequences, control characters, and text that a carriage return
    overwrites."""
    shown = ESCAPE.sub("", line).rstrip("\r \t").rpartition("\r")[2]
    return visible(shown.expandtabs(4)[:max_letters]).rstrip()
