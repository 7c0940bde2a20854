"""The file `metrics.jsonl`: a row for each step, in the order of the steps.

The file of a long run has millions of rows. Its end is found from the end, and its rows are read one by one.
When a run continues after a step, the rows up to it survive. The others were of steps that are lost: they run
again, and their rows move to `metrics.lost.jsonl`, each with the attempt that made it.

    attempts = PastAttempts()
    for event in events_of(run.journal("launcher")): attempts.add(event)
    elapsed = continue_rows(run, step, attempts)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.reading import MAX_LINES_BYTES, decoded, is_number, lines_of, opened

Row = dict[str, Any]
"""`step`, `time`, and a number or None per metric, by `STAGE.NAME`."""

BLOCK_BYTES = 1 << 16
MAX_ROW_BYTES = 1 << 20


def as_json(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def rows_of(path: Path, start: int = 0) -> Iterator[Row]:
    """Returns the rows from a position in bytes on; none if there is no file. A text that is no whole row,
    for example after a kill, is skipped."""
    return filter(None, map(parsed_row, lines_of(path, start)))


def read(path: Path) -> list[Row]:
    return list(rows_of(path))


def last_row(path: Path) -> Row | None:
    """Returns the last row; None if there is none."""
    return next((row for _, row in _from_end(path)), None)


def cut(path: Path, after: int) -> float:
    """Removes the rows of the steps after `after`. Returns the `time` of the last row that stays, in seconds;
    0 if none does."""
    end, row = end_of(path, after)
    if path.exists() and path.stat().st_size > end:
        os.truncate(path, end)
    return float(row["time"]) if row else 0.0


class PastAttempts:
    """The steps after which the attempts of a run have begun."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, int]] = []
        """The number of each attempt and the step before its first one, in their order."""

    def add(self, event: Event) -> None:
        if event.name == "launched":
            self._begun.append((int(event.value.get("attempt", 0)), 0))
        elif event.name == "resumed" and self._begun:
            self._begun[-1] = self._begun[-1][0], event.step or 0

    def last_of(self, step: int) -> int:
        """Returns the last attempt that can have run a step; 0 if there is none."""
        return next((number for number, begun in reversed(self._begun) if begun < step or not step), 0)


def continue_rows(run: RunDir, step: int | None, attempts: PastAttempts) -> float:
    """Moves the rows that are lost where a run continues after `step`, or starts again where it is None.
    Returns the `time` of the last row, in seconds; 0 without one. Raises `OSError` if a file cannot be
    written."""
    last = -1 if step is None else step
    end, _ = end_of(run.metrics, last)
    if lost := [row for row in rows_of(run.metrics, end) if row["step"] > last]:
        with run.lost_metrics.open("a", encoding="utf-8") as file:
            for row in lost:
                file.write(as_json({**row, "attempt": attempts.last_of(row["step"])}))
    return cut(run.metrics, last)


def end_of(path: Path, after: int) -> tuple[int, Row | None]:
    """Returns the size in bytes of a file without the rows of the steps after `after`, and its last row
    then."""
    return next(((end, row) for end, row in _from_end(path) if row["step"] <= after), (0, None))


def _from_end(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the rows, the last one first, each with the position of its end."""
    with suppress(FileNotFoundError), opened(path, MAX_LINES_BYTES) as file:
        start = file.seek(0, os.SEEK_END)
        rest = b""
        """The bytes from `start` on that were not yielded."""
        while start:
            size = min(start, BLOCK_BYTES)
            start -= size
            file.seek(start)
            first, *lines = (file.read(size) + rest).splitlines(keepends=True)
            yield from _rows_at(start + len(first), lines)
            rest = first if len(first) < MAX_ROW_BYTES else b""
        yield from _rows_at(0, [rest])


def _rows_at(start: int, lines: list[bytes]) -> Iterator[tuple[int, Row]]:
    end = start + sum(map(len, lines))
    for line in reversed(lines):
        if row := parsed_row(line):
            yield end, row
        end -= len(line)


def parsed_row(text: bytes) -> Row | None:
    """Returns the row of a line; None for a text that is no whole row."""
    try:
        row = decoded(text.decode()) if text.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not is_number(row.get("time")):
        return None
    return row if all(value is None or is_number(value) for value in row.values()) else None
