"""The file of a worker's spans in the trace of a run (`run.trace`): JSON lines, one for each step.

    {"format": 1, "attempt": n, "node": n, "start": step, "begin": time, "boot": ID}
    {"attempt": n, "step": n, "dropped": n, "spans": [...]}     the spans of a step

In the first line recording begins, after the step `start`. Times are seconds of the monotonic clock of the
worker's node, and `boot` names its machine since its start. A span is a list: thread, category, name, begin,
end, facts. The thread is empty for the main thread. The facts of a frame are its "bytes" and the workers "to"
which it was sent, or "from" which it came.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from meshctl.run.launcher import boot_id
from meshctl.run.reading import MAX_LINES_BYTES, decoded, opened

FORMAT = 1
SPANS_PER_STEP_MAX = 100_000
"""The maximum number of spans that a worker keeps in memory, which are those of one step."""
SPANS_MAX = 1_000_000
"""The maximum number of spans in the file of a worker. One takes about 100 bytes."""

_LINE = json.JSONEncoder(separators=(",", ":"), check_circular=False)
Span = list[Any]
"""Thread, category, name, begin, end, facts."""


class TraceFile:
    """A worker's file, for appending."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size:
            os.write(self._file, b"\n")  # a line of a killed worker may lack its end

    def begin(self, attempt: int, node: int, start: int, begin: float) -> None:
        times = {"begin": begin, "boot": boot_id()}
        self._write({"format": FORMAT, "attempt": attempt, "node": node, "start": start, **times})

    def add(self, attempt: int, step: int, spans: Sequence[Sequence[Any]], dropped: int) -> None:
        """Appends a step. Raises `OSError` on a full disk."""
        self._write({"attempt": attempt, "step": step, "dropped": dropped, "spans": spans})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        data = _LINE.encode(line).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]


_STEP = re.compile(rb'{"attempt":(\d+),"step":(\d+),')


class WorkerTrace:
    """The file of a worker, for reading: an index of its steps, each of which is read when it is needed."""

    def __init__(self, path: Path, steps: Container[int]) -> None:
        """Reads the spans of `steps`. If several attempts recorded a step, the last one counts. Raises
        `OSError`."""
        self._path, self._steps = path, steps
        self.begin = 0.0
        """The beginning of the recording, in seconds of the clock of the worker's node."""
        self.node: int | None = None
        """The node of the last attempt, if it is known."""
        self._boot = ""
        self._places: dict[int, list[tuple[int, int]]] = {}
        """Step -> the place and the length of each of its lines. Stages at the end of a run have their
        own."""
        self.attempts: dict[int, int] = {}
        """Step -> the attempt that has recorded it."""
        place = 0
        with opened(path, MAX_LINES_BYTES) as file:
            for line in file:
                self._add(place, line)
                place += len(line)

    def _add(self, place: int, line: bytes) -> None:
        if found := _STEP.match(line):
            attempt, step = int(found[1]), int(found[2])
            if step in self._steps:
                self.attempts[step] = attempt
                self._places.setdefault(step, []).append((place, len(line)))
        elif line.startswith(b'{"format"') and (begun := parsed(line)):
            self.node = begun.get("node")
            is_same = begun["boot"] == self._boot  # else its times cannot be compared with the former ones
            self._boot, after = begun["boot"], int(begun["start"])
            for step in [step for step in self._places if not is_same or step > after]:
                del self._places[step], self.attempts[step]
            if not self._places:
                self.begin = float(begun["begin"])

    def read(self, step: int) -> list[Span]:
        """Returns the spans of a step. A line that was cut is skipped."""
        spans = list[Span]()
        with opened(self._path, MAX_LINES_BYTES) as file:
            for place, length in self._places[step]:
                file.seek(place)
                if found := parsed(file.read(length)):
                    spans += found["spans"]
        return spans


def parsed(line: bytes) -> dict[str, Any]:
    """Returns the object in a line; an empty one for a line that was cut."""
    try:
        found: dict[str, Any] = decoded(line.decode())
    except ValueError:
        return {}
    return found
