"""The log of a worker, `logs/GROUP/RANK.log`: the bytes of its stdout and stderr. Each line begins with the
time at which its first byte arrived, as in `docker logs --timestamps`:

    2026-11-23T13:14:15.123Z epoch 3, loss 0.271

With `run.logs.keep` the log is at most two files, of half as many bytes each: when RANK.log is full, it
becomes RANK.log.1, in place of the one before, and a new RANK.log begins.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshctl.run.reading import MAX_LOG_BYTES, opened

STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", re.MULTILINE)
"""The time at the beginning of a line: UTC, as in RFC 3339."""
_STAMP_BYTES = re.compile(STAMP.pattern.encode(), re.MULTILINE)
CONTINUED = "==== meshctl: earlier lines are in "
"""The beginning of the first line in the newer half of a bounded log."""
_CONTINUED = re.compile(rb"\A\S{24} " + CONTINUED.encode() + rb".*\n")
RETRY_S = 0.25
"""Seconds after a failed write in which the file is not written again."""


def stamp(seconds: float) -> bytes:
    """Returns the beginning of a line that arrived at `seconds` since the epoch."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    year, month, day, hour, minute, second, *_ = time.gmtime(whole)
    return b"%04d-%02d-%02dT%02d:%02d:%02d.%03dZ " % (year, month, day, hour, minute, second, thousandths)


def without_stamps(text: str) -> str:
    """Returns the text of a log as the worker wrote it."""
    return STAMP.sub("", text)


def older(path: Path) -> Path:
    """Returns the path of the older half of a bounded log."""
    return path.with_name(f"{path.name}.1")


def read_tail(path: Path, max_bytes: int) -> bytes:
    """Returns the last bytes of a log, of both of its files. Returns an empty text for a file that does not
    exist or cannot be read."""
    tail = _last_bytes(path, max_bytes)
    if len(tail) == max_bytes:
        return tail
    return _last_bytes(older(path), max_bytes - len(tail)) + _CONTINUED.sub(b"", tail, 1)


def _last_bytes(path: Path, count: int) -> bytes:
    with suppress(OSError), opened(path, MAX_LOG_BYTES) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read(count)
    return b""


class LogFile:
    """Writes the log of one worker. No method raises `OSError`: bytes that cannot be written are dropped, and
    the log states how many are missing once it can be written again."""

    def __init__(
        self,
        path: Path,
        keep: int = 0,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` is the maximum number of bytes of both files; 0 for no limit. `now` returns the time of the
        stamps, `clock` the time for `RETRY_S`."""
        self.path = path
        self.problem: OSError | None = None
        """The reason why the last bytes could not be written; None if they were."""
        self._now, self._clock = now, clock
        self._max_bytes = keep // 2
        self._file = -1
        self._size = self._head_bytes = 0
        """Bytes of the file, and of those the bytes of the note with which it begins."""
        self._is_line_begun = False
        """True if the last byte of the file is not a newline."""
        self._left = b""
        """The bytes that are still to be written."""
        self._missing = 0
        """Number of dropped bytes, without stamps."""
        self._retry_at = 0.0

    def write(self, data: bytes) -> None:
        """Appends bytes of the worker's output, with stamps. Makes the file if it does not exist."""
        if self.problem and self._clock() < self._retry_at:
            self._missing += len(data)
            return
        has_begun, reason = False, self.problem and self.problem.strerror
        try:
            self._open()
            if self._missing:
                self._append(self._note(f"{self._missing:,} bytes are missing here: {reason}"))
                self._missing = 0
            has_begun = True
            self._append(self._stamped(data) if data else b"")
            self.problem = None
        except OSError as error:
            self._missing += len(_STAMP_BYTES.sub(b"", self._left)) if has_begun else len(data)
            self.problem, self._retry_at = error, self._clock() + RETRY_S

    def close(self) -> None:
        """Closes the file, with a note if bytes are still missing."""
        self._retry_at = 0.0
        if self._missing:
            self.write(b"")
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _note(self, text: str) -> bytes:
        return (
            (b"\n" if self._is_line_begun else b"")
            + stamp(self._now())
            + f"==== meshctl: {text} ====\n".encode()
        )

    def _stamped(self, data: bytes) -> bytes:
        """Returns bytes of the output with a stamp before each line that begins in them."""
        mark = stamp(self._now())
        body = data[:-1].replace(b"\n", b"\n" + mark) + data[-1:]
        return body if self._is_line_begun else mark + body

    def _append(self, text: bytes) -> None:
        self._left = text
        while self._left:
            count = self._room()
            if not count:
                self._rotate()
                continue
            written = os.write(self._file, self._left[:count])
            self._size += written
            self._is_line_begun = self._left[written - 1 : written] != b"\n"
            self._left = self._left[written:]

    def _room(self) -> int:
        """Returns how many of the bytes that are left belong in this file: whole lines, or, in a new file, a
        part of a line that is longer than a file. Returns 0 if they belong in the next file."""
        left = self._left
        if not self._max_bytes or self._size + len(left) <= self._max_bytes:
            return len(left)
        room = max(self._max_bytes - self._size, 0)
        is_new = self._size == self._head_bytes
        return left.rfind(b"\n", 0, room) + 1 or (room if is_new else 0)

    def _open(self) -> None:
        if self._file >= 0:
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.path, flags, 0o644)
        self._size, self._head_bytes = os.fstat(self._file).st_size, 0
        self._is_line_begun = bool(self._size) and os.pread(self._file, 1, self._size - 1) != b"\n"

    def _rotate(self) -> None:
        """Begins a new file. The old one replaces the older one, whose lines are dropped."""
        earlier = older(self.path)
        dropped = ", and lines before it were dropped (run.logs)" if earlier.exists() else ""
        os.replace(self.path, earlier)
        os.close(self._file)
        self._file = -1
        self._open()
        note = stamp(self._now()) + f"{CONTINUED}{earlier.name}{dropped} ====\n".encode()
        self._size = self._head_bytes = os.write(self._file, note)
