"""Writes the events that nodes without a shared run directory send to the head into its own event files, in
which the head reads them as those of other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from meshctl.run.directory import RunDir
from meshctl.run.event_files import newest_segment, segment_after
from meshctl.run.events import SEGMENT_BYTES


class ForwardedEvents:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._paths: dict[str, Path] = {}
        """Process -> the segment to which its events are appended."""
        self._unwritten: dict[str, str] = {}
        """Process -> lines that a full disk did not take."""

    def add(self, who: str, lines: Iterable[str]) -> None:
        """Appends the lines of a process. What the disk does not take is written later."""
        self._unwritten[who] = self._unwritten.get(who, "") + "".join(lines)
        self.flush()

    def flush(self) -> None:
        """Writes what the disk did not take before."""
        for who, text in list(self._unwritten.items()):
            with suppress(OSError):  # the head reports a run directory that cannot be written
                self._append(who, text)
                del self._unwritten[who]

    def _append(self, who: str, text: str) -> None:
        path = self._paths.get(who) or newest_segment(self._run.journal(who))
        with suppress(FileNotFoundError):
            path = segment_after(path) if path.stat().st_size >= SEGMENT_BYTES else path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._paths[who] = path
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
