"""Reads the events that the processes of a node write, for a head that does not see their files.

    forwarding = EventForwarding(run.events)       # skips what is there
    for who, lines in forwarding.new(): ...        # process, and its new lines

A segment whose lines were all returned is deleted once another one follows it: the head has the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.network.connection import Message
from meshctl.run.directory import RunDir
from meshctl.run.event_files import EventFiles, event_files, segment_name
from meshctl.run.reading import lines_of

EVENTS_S = 0.1
"""Seconds between two looks for events that are sent to the head."""
LINES_MAX = 500
"""The number of lines of a message."""


class EventForwarding:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[int, int]] = {}
        """Process -> the segment that was read last, and how many bytes of it."""
        for process in event_files(folder):
            path = folder / segment_name(process.who, process.last)
            self._read[process.who] = (process.last, path.stat().st_size)

    def messages(self, attempt: int) -> Iterator[Message]:
        """Yields messages to the head with the new lines."""
        for who, lines in self.new():
            yield {"type": "events", "attempt": attempt, "who": who, "lines": lines}

    def new(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the new lines of each process, in the order of writing."""
        for process in event_files(self._folder):
            yield from self._new_of(process)

    def _new_of(self, process: EventFiles) -> Iterator[tuple[str, list[str]]]:
        who = process.who
        for number in process.segments:
            segment, position = self._read.get(who, (-1, 0))
            if number < segment:
                continue
            position = position if number == segment else 0
            path, lines = self._folder / segment_name(who, number), list[str]()
            for line in lines_of(path, position):
                position += len(line)
                lines.append(line.decode(errors="replace"))
                if len(lines) == LINES_MAX:
                    yield who, lines
                    lines = []
            if lines:
                yield who, lines
            self._read[who] = (number, position)
            if number < process.last:
                with suppress(OSError):
                    path.unlink()


def prune(run: RunDir, message: Message) -> None:
    """Deletes old checkpoints in the run directory of a node, as the head requests it."""
    exempt = [int(step) for step in message["exempt"]]
    run.prune_checkpoints(int(message["latest"]), int(message["keep"]), exempt)
