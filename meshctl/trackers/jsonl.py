"""`metrics.jsonl`: one JSON object per step, written as soon as the step is complete. Rows that a full or
read-only disk does not take are written with a later one, or at the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.events import Observer
from meshctl.run.metrics import as_json, cut


class JsonLines(Observer):
    """Writes the metrics file of a run. It has one row per step: a row that arrives again replaces itself."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.metrics
        self._file: FileIO | None = None
        self._step: int | None = None
        self._start = self._end = 0
        """The positions of the last row."""
        self._waiting: list[tuple[int, bytes]] = []
        """Step and text of the rows that are not written yet."""

    def on_attempt(self, number: int, step: int | None) -> None:
        """Removes the rows of later steps from a file that exists."""
        self._close()
        if self._path.exists():
            cut(self._path, -1 if step is None else step)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._step, self._waiting = FileIO(self._path, "a"), None, []
        self._end = os.fstat(self._file.fileno()).st_size

    def on_row(self, row: Mapping[str, Any]) -> None:
        if self._waiting and self._waiting[-1][0] == row["step"]:
            self._waiting.pop()
        self._waiting.append((row["step"], as_json(dict(row)).encode()))
        with suppress(OSError):  # the supervisor warns of the disk
            self._write()

    def on_end(self, code: int, reason: str) -> None:
        """Raises `OSError` if the disk still does not take all rows."""
        try:
            self._write()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        finally:
            self._close()

    def _write(self) -> None:
        """Writes the rows that wait. A row that could be written in part only is written again."""
        assert self._file is not None
        while self._waiting:
            step, text = self._waiting[0]
            self._start = self._start if step == self._step else self._end
            if os.fstat(self._file.fileno()).st_size > self._start:
                self._file.truncate(self._start)
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._step, self._end = step, self._start + len(text)
            self._waiting.pop(0)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
