"""Moves the times of a file of torch's profiler, so that they are those of `trace.json`.

An event has its `ts`, in microseconds since `baseTimeNanoseconds`, on a line of its own. The file may be
large, so it is read in blocks.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

BLOCK_BYTES = 1 << 20
EVENT_BYTES = 1 << 12
"""The bytes after the name of an event in which its time is."""
_BASE = re.compile(rb'("baseTimeNanoseconds":\s*)(\d+)')
_TIME = re.compile(rb'^(\s*"ts":\s*)(-?\d+)(?:\.(\d{1,3}))?', re.MULTILINE)


def move(path: Path, name: str, time: float) -> None:
    """Writes the file again so that the event `name` is at `time`, in microseconds, unless it is there. A
    file without such an event is left as it is. Raises `OSError`."""
    found = _time_of(path, name)
    shift = 0 if found is None else round(1000 * time) - found
    if not shift:
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with path.open("rb") as file, os.fdopen(descriptor, "wb") as moved:
        block = file.read(BLOCK_BYTES) + file.readline()
        block = _BASE.sub(lambda base: b"%b%d" % (base[1], int(base[2]) - shift), block, count=1)
        while block:
            moved.write(_TIME.sub(lambda line: _moved(line, shift), block))
            block = file.read(BLOCK_BYTES) + file.readline()
    part.rename(path)


def _time_of(path: Path, name: str) -> int | None:
    """Returns the time of an event in nanoseconds; None if there is none with this name."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(b'"name": "%b"' % name.encode())
        found = _TIME.search(data[place : place + EVENT_BYTES]) if place >= 0 else None
    return _nanoseconds(found) if found else None


def _nanoseconds(line: re.Match[bytes]) -> int:
    return int(line[2] + (line[3] or b"").ljust(3, b"0"))


def _moved(line: re.Match[bytes], shift: int) -> bytes:
    """Returns the line of a time, `shift` nanoseconds later."""
    time = _nanoseconds(line) + shift
    return b"%b%b%d.%03d" % (line[1], b"-" * (time < 0), abs(time) // 1000, abs(time) % 1000)
