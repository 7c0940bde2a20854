"""The lines of the logs of several workers, in the order of their times.

    for line in lines_of_workers(run, [("train", 0), ("train", 1)]): ...

    log = WorkerLog(run, "train", 0)
    log.new(is_last=False)          # the whole lines since the last call

A log is at most two files (`log_files.py`), and both are read. A line without a time, which marks the
beginning of an attempt, has that of the line before it.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from meshctl.run.directory import RunDir
from meshctl.run.log_files import CONTINUED, STAMP, older
from meshctl.run.reading import MAX_LOG_BYTES, descriptor, stat_of

BLOCK_BYTES = 1 << 16
_STAMP = re.compile(STAMP.pattern.encode())
MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in parts."""
STAMP_LETTERS = 25
"""The length of a time with the space behind it."""
_NOTE = CONTINUED.encode()


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


def lines_of_workers(run: RunDir, workers: Iterable[tuple[str, int]], since: str = "") -> Iterator[LogLine]:
    """Yields the lines of the logs of workers, from a time on, in the order of their times."""
    return merged([WorkerLog(run, group, rank, since) for group, rank in workers], is_last=True)


def merged(logs: Sequence[WorkerLog], is_last: bool) -> Iterator[LogLine]:
    """Yields the new lines of several logs in the order of their times."""
    return heapq.merge(*(log.new(is_last) for log in logs), key=lambda line: line.time)


def as_time(seconds: float) -> str:
    """Returns seconds since the epoch as the logs have them."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class WorkerLog:
    """Reads the log of one worker as it grows."""

    def __init__(self, run: RunDir, group: str, rank: int, since: str = "") -> None:
        """`since` is the time of the first line, as logs have it; empty for all."""
        self._path, self._group, self._rank, self._since = run.log(group, rank), group, rank, since
        self._inode = self._offset = 0
        """The file that was read last, and how far."""
        self._time = ""
        """The time of the last line."""

    def new(self, is_last: bool) -> Iterator[LogLine]:
        """Yields the whole lines since the last call. With `is_last` also a line that has no end."""
        newer, before = stat_of(self._path), stat_of(older(self._path))
        if newer is None:
            return
        if before and before.st_ino != newer.st_ino and self._inode in (0, before.st_ino):
            yield from self._of_file(before.st_ino, before.st_size, is_last=True)
        yield from self._of_file(newer.st_ino, newer.st_size, is_last)

    def _of_file(self, inode: int, size: int, is_last: bool) -> Iterator[LogLine]:
        if inode != self._inode:
            self._inode, self._offset = inode, self._start(inode, size) if self._since else 0
        rest = b""
        for block in self._blocks(inode, size):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._offset += len(line) + 1
                yield from self._parsed(line)
            if len(rest) > MAX_LINE_BYTES:
                self._offset += len(rest)
                yield from self._parsed(rest)
                rest = b""
        if rest and is_last:
            self._offset += len(rest)
            yield from self._parsed(rest)

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
        for path in (self._path, older(self._path)):
            with suppress(FileNotFoundError):
                file = descriptor(path, MAX_LOG_BYTES)
                try:
                    if os.fstat(file).st_ino == inode:
                        return os.pread(file, count, position)
                finally:
                    os.close(file)
        return b""

    def _start(self, inode: int, size: int) -> int:
        """Returns a position at the beginning of a line, before which all lines are older than `since`."""
        low, high = 0, size
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            begin, time = self._first_time(inode, middle)
            if time and time < self._since:
                low = begin
            else:
                high = middle
        return low

    def _first_time(self, inode: int, position: int) -> tuple[int, str]:
        """Returns the position of the first line with a time that begins behind a position, and its time. It
        is looked for in one block."""
        block = self._block(inode, position, BLOCK_BYTES)
        at = block.find(b"\n") + 1
        while at:
            if _STAMP.match(block, at):
                return position + at, block[at : at + STAMP_LETTERS - 1].decode()
            at = block.find(b"\n", at) + 1
        return position, ""

    def _parsed(self, line: bytes) -> Iterator[LogLine]:
        if _STAMP.match(line):
            self._time, line = line[: STAMP_LETTERS - 1].decode(), line[STAMP_LETTERS:]
        if not line.startswith(_NOTE) and self._time >= self._since:
            yield LogLine(self._time, self._group, self._rank, line.decode(errors="replace"))
