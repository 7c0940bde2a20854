"""The events of nodes that do not share the run directory of the head. The node reads what its processes
write, and the head writes it into its own event files, in which it reads them as those of other nodes.

    forwarding = EventForwarding(run.events)                 on the node; skips what is there
    for message in forwarding.messages(attempt): ...
    forwarded.add(message["who"], message["lines"])          in the head

A segment whose lines were all sent is deleted on the node once another one follows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.network.connection import Message
from meshctl.run.directory import RunDir
from meshctl.run.event_files import EventFiles, event_files, newest_segment, segment_after, segment_name
from meshctl.run.events import SEGMENT_BYTES
from meshctl.run.reading import appended, lines_of

EVENTS_S = 0.1
"""Seconds between two looks for events that are sent to the head."""
LINES_MAX = 500
"""The number of lines of a message."""
PROCESS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,150}-[0-9]{1,9}")
"""The names of the processes whose events nodes send: GROUP-RANK and agent-GROUP-NODE."""


class EventForwarding:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[int, int]] = {}
        """Process -> the segment that was read last, and how many bytes of it."""
        for process in event_files(folder):
            path = folder / segment_name(process.who, process.last)
            self._read[process.who] = (process.last, path.stat().st_size)

    def messages(self, attempt: int) -> Iterator[Message]:
        """Yields messages to the head with the new lines of each process, in the order of writing."""
        for process in event_files(self._folder):
            lines = list(self._new_of(process))
            for start in range(0, len(lines), LINES_MAX):
                part = lines[start : start + LINES_MAX]
                yield {"type": "events", "attempt": attempt, "who": process.who, "lines": part}

    def _new_of(self, process: EventFiles) -> Iterator[str]:
        who = process.who
        for number in process.segments:
            segment, position = self._read.get(who, (-1, 0))
            if number < segment:
                continue
            position = position if number == segment else 0
            path = self._folder / segment_name(who, number)
            for line in lines_of(path, position):
                position += len(line)
                yield line.decode(errors="replace")
            self._read[who] = (number, position)
            if number < process.last:
                with suppress(OSError):
                    path.unlink()


class ForwardedEvents:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._paths: dict[str, Path] = {}
        """Process -> the segment to which its events are appended."""
        self._unwritten: dict[str, str] = {}
        """Process -> lines that a full disk did not take."""

    def add(self, who: str, lines: Iterable[str]) -> None:
        """Appends the lines of a process. What the disk does not take is written later."""
        if PROCESS.fullmatch(who):
            self._unwritten[who] = self._unwritten.get(who, "") + "".join(lines)
        for name, text in list(self._unwritten.items()):
            with suppress(OSError):  # the head reports a run directory that cannot be written
                self._append(name, text)
                del self._unwritten[name]

    def _append(self, who: str, text: str) -> None:
        path = self._paths.get(who) or newest_segment(self._run.journal(who))
        with suppress(FileNotFoundError):
            path = segment_after(path) if path.stat().st_size >= SEGMENT_BYTES else path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._paths[who] = path
        file = appended(path)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
