"""The log of a worker, `logs/GROUP/RANK.log`: the bytes of its stdout and stderr. Each line begins with the
time at which its first byte arrived, as in `docker logs --timestamps`:

    2026-11-23T13:14:15.123Z epoch 3, loss 0.271

With `run.logs.keep` the log is at most two files, of half as many bytes each: when RANK.log is full, it
becomes RANK.log.1, in place of the one before, and a new RANK.log begins. `WorkerLog` reads both. A line
without a time, which marks the beginning of an attempt, has that of the line before it.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from meshctl.run.directory import RunDir
from meshctl.run.reading import MAX_LOG_BYTES, descriptor, lines_in, stat_of, tail_of
from meshctl.text.english import counted, did_you_mean

STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", re.MULTILINE)
"""The time at the beginning of a line: UTC, as in RFC 3339."""
_STAMP_BYTES = re.compile(STAMP.pattern.encode(), re.MULTILINE)
CONTINUED = "==== meshctl: earlier lines are in "
"""The beginning of the first line in the newer half of a bounded log."""
_CONTINUED = re.compile(rb"\A\S{24} " + CONTINUED.encode() + rb".*\n")
BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in parts."""
STAMP_LETTERS = 25
"""The length of a time with the space behind it."""
RETRY_S = 0.25
"""Seconds after a failed write in which the file is not written again."""


def as_time(seconds: float) -> str:
    """Returns seconds since the epoch as the logs have them."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def stamp(seconds: float) -> bytes:
    """Returns the beginning of a line that arrived at `seconds` since the epoch."""
    return f"{as_time(seconds)} ".encode()


def without_stamps(text: str) -> str:
    """Returns the text of a log as the worker wrote it."""
    return STAMP.sub("", text)


def older(path: Path) -> Path:
    """Returns the path of the older half of a bounded log."""
    return path.with_name(f"{path.name}.1")


def read_tail(path: Path, max_bytes: int) -> bytes:
    """Returns the last bytes of a log, of both of its files. Returns an empty text for a file that does not
    exist or cannot be read."""
    tail = tail_of(path, max_bytes)
    if len(tail) == max_bytes:
        return tail
    return tail_of(older(path), max_bytes - len(tail)) + _CONTINUED.sub(b"", tail, 1)


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


@dataclass(frozen=True, slots=True)
class LogLine:
    time: str
    """The time at which its first byte arrived: UTC, as in RFC 3339; empty where the log has none."""
    group: str
    rank: int
    text: str

    @property
    def worker(self) -> str:
        return f"{self.group}:{self.rank}"


def workers_named(known: Mapping[str, int], names: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Returns (group, rank) of each worker that GROUP and GROUP:RANK name; all of them without names. `known`
    is group -> the number of its workers. Raises `ValueError` with a sentence."""
    found = dict[tuple[str, int], None]()
    for name in [*names] or known:
        group, colon, rank = name.partition(":")
        if group not in known:
            raise ValueError(f"the group `{group}` does not exist: {did_you_mean(group, known)}")
        if colon and not (rank.isdecimal() and int(rank) < known[group]):
            has = counted(known[group], "worker")
            raise ValueError(f"the rank `{name}` does not exist: `{group}` has {has}, from 0 on")
        found |= dict.fromkeys((group, each) for each in ([int(rank)] if colon else range(known[group])))
    return list(found)


def lines_of_workers(run: RunDir, workers: Iterable[tuple[str, int]], since: str = "") -> Iterator[LogLine]:
    """Yields the lines of the logs of workers, from a time on, in the order of their times."""
    return merged([WorkerLog(run, group, rank, since) for group, rank in workers], is_last=True)


def merged(logs: Sequence[WorkerLog], is_last: bool) -> Iterator[LogLine]:
    """Yields the new lines of several logs in the order of their times."""
    return heapq.merge(*(log.new(is_last) for log in logs), key=lambda line: line.time)


class WorkerLog:
    """Reads the log of one worker as it grows."""

    def __init__(self, run: RunDir, group: str, rank: int, since: str = "") -> None:
        """`since` is the time of the first line, as logs have it; empty for all."""
        self.path, self._group, self._rank, self._since = run.log(group, rank), group, rank, since
        self._inode = self._offset = 0
        """The file that was read last, and how far."""
        self._time = ""
        """The time of the last line."""

    def skip(self) -> None:
        """Leaves out the lines so far."""
        if found := stat_of(self.path):
            self._inode, self._offset = found.st_ino, found.st_size

    def new(self, is_last: bool, most: int = 0) -> Iterator[LogLine]:
        """Yields the whole lines since the last call. With `is_last` also a line that has no end. `most` is
        the number of bytes that are read of a file, the newest ones; 0 for all."""
        newer, before = stat_of(self.path), stat_of(older(self.path))
        if newer is None:
            return
        if before and before.st_ino != newer.st_ino and self._inode in (0, before.st_ino):
            yield from self._of_file(before.st_ino, before.st_size, True, most)
        yield from self._of_file(newer.st_ino, newer.st_size, is_last, most)

    def _of_file(self, inode: int, size: int, is_last: bool, most: int) -> Iterator[LogLine]:
        if inode != self._inode:
            self._inode, self._offset = inode, self._start(inode, size) if self._since else 0
        if most:
            self._offset = max(self._offset, size - most)
        for line in lines_in(self._blocks(inode, size), MAX_LINE_BYTES, with_rest=is_last):
            self._offset += len(line)
            yield from self._parsed(line.removesuffix(b"\n"))

    def _blocks(self, inode: int, size: int) -> Iterator[bytes]:
        """Yields a file from the present position on. It is opened for each block, because a run may have
        more workers than a process may have open files. It may become the older file meanwhile."""
        position = self._offset
        while position < size:
            block = self._block(inode, position, min(BLOCK_BYTES, size - position))
            if not block:
                return
            position += len(block)
            yield block

    def _block(self, inode: int, position: int, count: int) -> bytes:
        for path in (self.path, older(self.path)):
            with suppress(FileNotFoundError):
                file = descriptor(path, MAX_LOG_BYTES)
                try:
                    if os.fstat(file).st_ino == inode:
                        return os.pread(file, count, position)
                finally:
                    os.close(file)
        return b""

    def _start(self, inode: int, size: int) -> int:
        """Returns a position before which all lines are older than `since`: the beginning of a block.
        The rest of a line there has no time and is left out."""

        def time_of(block: int) -> str:
            """Returns the first time in a block, or a later one than any where it has none."""
            found = _STAMP_BYTES.search(self._block(inode, block * BLOCK_BYTES, BLOCK_BYTES))
            return found[0].decode() if found else "~"

        blocks = range(size // BLOCK_BYTES)
        return max(0, bisect_left(blocks, self._since, key=time_of) - 1) * BLOCK_BYTES

    def _parsed(self, line: bytes) -> Iterator[LogLine]:
        if _STAMP_BYTES.match(line):
            self._time, line = line[: STAMP_LETTERS - 1].decode(), line[STAMP_LETTERS:]
        if not line.startswith(CONTINUED.encode()) and self._time >= self._since:
            yield LogLine(self._time, self._group, self._rank, line.decode(errors="replace"))
