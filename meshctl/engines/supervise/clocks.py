"""The clocks of the nodes, for the trace of a run. A measurement that is better than those before becomes a
`clock` event: the node, how far its clock is ahead of the head's, the error, and when that was (seconds)."""

from __future__ import annotations

from meshctl.engines.supervise.reports import ClockRead
from meshctl.run.clock_offset import Offset
from meshctl.run.events import Journal


class Clocks:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._written: dict[int, Offset] = {}
        """Node -> the measurement that was written last."""

    def add(self, read: ClockRead) -> None:
        found = Offset.measured(read.sent, read.remote, read.received)
        last = self._written.get(read.node)
        if last is None or found.error < last.error_at(found.at):
            self._written[read.node] = found
            self._journal.write("clock", node=read.node, offset=found.value, error=found.error, at=found.at)
