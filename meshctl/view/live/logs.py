"""The log files `logs/GROUP/RANK.log` of a run, read as they grow.

The files are only read, by polling, and each call reads a bounded amount: whatever workers print, the run is
not affected.
"""

from __future__ import annotations

from pathlib import Path

from meshctl.run.logs import CONTINUED, older, without_stamps
from meshctl.run.reading import MAX_LOG_BYTES, opened, stat_of
from meshctl.text.bounded import ESCAPE
from meshctl.view.pictures.text.styled import visible

MAX_LINE_LETTERS = 200


class LogTail:
    """Reads one log file as it grows; a file that does not exist or cannot be read has no lines."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        found = stat_of(path) if from_end else None
        self._offset = found.st_size if found else 0
        self._inode = found.st_ino if found else 0
        """The inode of the file that was read last. It changes when a bounded log begins a new file."""

    def new_lines(self, max_bytes: int, *, is_complete: bool = False) -> list[str]:
        """Returns the complete lines that were written since the last call, without empty lines, stamps and
        notes that a file continues another one.

        If more than `max_bytes` were written, the result is the newest lines, and older lines are skipped.
        With `is_complete`, it is the oldest lines, and the next call continues after them.
        """
        found = stat_of(self.path)
        if found is None:
            return []
        rest = list[str]()
        if self._inode not in (0, found.st_ino):
            rest = self._rest_of_older(max_bytes, is_complete)
            if is_complete and rest:
                return rest
            self._offset = 0
        self._inode = found.st_ino
        return rest + self._read(self.path, found.st_size, max_bytes, is_complete)

    def _rest_of_older(self, max_bytes: int, is_complete: bool) -> list[str]:
        """Returns new lines of the file that was read last and is now the older half of the log."""
        path = older(self.path)
        found = stat_of(path)
        if found is None or found.st_ino != self._inode:
            return []
        return self._read(path, found.st_size, max_bytes, is_complete)

    def _read(self, path: Path, size: int, max_bytes: int, is_complete: bool) -> list[str]:
        if size <= self._offset:
            return []
        start = self._offset if is_complete else max(self._offset, size - max_bytes)
        try:
            with opened(path, MAX_LOG_BYTES) as file:
                file.seek(start)
                text = file.read(min(size - start, max_bytes))
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and len(text) < max_bytes:
            return []
        self._offset = start + len(whole or text)
        lines = without_stamps((whole or text).decode("utf-8", errors="replace")).split("\n")
        return [line for line in lines if line.strip() and not line.startswith(CONTINUED)]


def printable(line: str, max_letters: int = MAX_LINE_LETTERS) -> str:
    """Returns a log line without escape sequences, control characters, and text that a carriage return
    overwrites."""
    shown = ESCAPE.sub("", line).rstrip("\r \t").rpartition("\r")[2]
    return visible(shown.expandtabs(4)[:max_letters]).rstrip()
