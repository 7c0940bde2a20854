"""`metrics.jsonl`: one JSON object per step, written as soon as the step is complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.row_file import as_json, cut


class JsonLines:
    """Writes the metrics file of a run. It has one row per step: a row that arrives again replaces itself."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.metrics
        self._file: BinaryIO | None = None
        self._step: int | None = None
        self._start = 0
        """Byte offset of the last row."""

    def on_attempt(self, number: int, step: int | None) -> None:
        """Removes the rows of later steps from a file that exists."""
        self._close()
        if self._path.exists():
            cut(self._path, -1 if step is None else step)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._step = self._path.open("ab"), None

    def on_event(self, event: Event) -> None:
        pass

    def on_row(self, row: Mapping[str, Any]) -> None:
        assert self._file is not None
        if row["step"] == self._step:
            self._file.truncate(self._start)
        self._step, self._start = row["step"], self._file.seek(0, os.SEEK_END)
        self._file.write(as_json(dict(row)).encode())
        self._file.flush()

    def on_end(self, code: int, reason: str) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
