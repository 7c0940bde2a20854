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
from meshctl.run.events import SEGMENT_BYTES, Follower, newest_segment, segment_after
from meshctl.run.reading import appended

EVENTS_S = 0.1
"""Seconds between two looks for events that are sent to the head."""
LINES_MAX = 500
"""The number of lines of a message."""
PROCESS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,150}-[0-9]{1,9}")
"""The names of the processes whose events nodes send: GROUP-RANK and agent-GROUP-NODE."""


class EventForwarding:
    def __init__(self, folder: Path) -> None:
        self._folder, self._follower = folder, Follower(folder)
        self._follower.skip()

    def messages(self, attempt: int) -> Iterator[Message]:
        """Yields messages to the head with the new lines of each process, in the order of writing."""
        for who in self._follower.grown():
            lines = [line.decode(errors="replace") for line in self._follower.lines(who)]
            for start in range(0, len(lines), LINES_MAX):
                part = lines[start : start + LINES_MAX]
                yield {"type": "events", "attempt": attempt, "who": who, "lines": part}
            for segment in self._follower.files().get(who, ()):
                if self._follower.has_read(who, segment.number):
                    (self._folder / segment.name).unlink(missing_ok=True)


class ForwardedEvents:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._paths: dict[str, Path] = {}
        """Process -> the segment to which its events are appended."""
        self._unwritten: dict[str, bytes] = {}
        """Process -> lines that a full disk did not take."""

    def add(self, who: str, lines: Iterable[str]) -> None:
        """Appends the lines of a process. What the disk does not take is written later."""
        if PROCESS.fullmatch(who):
            self._unwritten[who] = self._unwritten.get(who, b"") + "".join(lines).encode()
        for name in [name for name, left in self._unwritten.items() if left]:
            with suppress(OSError):  # the head reports a run directory that cannot be written
                self._write(name)

    def _write(self, who: str) -> None:
        path = self._paths[who] = self._paths.get(who) or newest_segment(self._run.journal(who))
        path.parent.mkdir(parents=True, exist_ok=True)
        file = appended(path)
        try:
            while left := self._unwritten[who]:
                self._unwritten[who] = left[os.write(file, left) :]
            if os.fstat(file).st_size >= SEGMENT_BYTES:
                self._paths[who] = segment_after(path)
        finally:
            os.close(file)
