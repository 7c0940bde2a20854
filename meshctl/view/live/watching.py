"""The view of a run in a process other than its launcher: from another terminal, and afterwards.

    for seen in polled(seen):                     # once a second while the run goes on, and its end
        view.show(seen)
    view.end(seen)

The file with the state is read where it has changed. On a terminal the picture is that of `launch`. Without
one, the launcher's events and the rows of metrics are read as they grow, and printed as plain lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from meshctl.run.events import parsed
from meshctl.run.metrics import parsed_row
from meshctl.run.reading import lines_of, size_of
from meshctl.view.live import has_cursor
from meshctl.view.live.dashboard import Dashboard
from meshctl.view.live.output import Output
from meshctl.view.live.plain import PlainOutput
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.summary import position

POLL_S = 1.0
"""Seconds between two looks at a run. The launcher writes its state once a second."""


class WatchView:
    def show(self, seen: SeenRun) -> None: ...

    def end(self, seen: SeenRun) -> None:
        self.show(seen)
        self.close()

    def close(self) -> None: ...


def polled(seen: SeenRun, sleep: Callable[[float], object] = time.sleep) -> Iterator[SeenRun]:
    """Yields a run once a second until it is over, and then as it has ended. Raises `NoRun` if it can no
    longer be read, because it was deleted for example."""
    while seen.is_live:
        yield seen
        sleep(POLL_S)
        seen = seen.again()
    yield seen


def watch_view(seen: SeenRun, stream: TextIO, environ: Mapping[str, str] = os.environ) -> WatchView:
    """Returns the picture for a terminal that can move its cursor, and plain lines otherwise."""
    output = Output(seen.plan, seen.run, from_end=True)
    output.hint = f"follow a rank: meshctl logs {seen.name} GROUP:RANK -f"
    if seen.state.last:
        output.end_first_lines()
    return (LivePicture if has_cursor(stream, environ) else PlainWatch)(seen, stream, output)


class LivePicture(WatchView):
    """The picture of `launch`."""

    def __init__(self, seen: SeenRun, stream: TextIO, output: Output) -> None:
        self._dashboard = Dashboard(seen.plan, stream, output)
        self._seen = seen

    def show(self, seen: SeenRun) -> None:
        self._dashboard.on_state(seen.state, seen.seconds, seen.where)
        self._seen = seen

    def close(self) -> None:
        """Leaves the last picture on the terminal."""
        self._dashboard.on_end(self._seen.code, self._seen.state.reason)


class PlainWatch(WatchView):
    """The plain lines of `launch`, from now on."""

    def __init__(self, seen: SeenRun, stream: TextIO, output: Output) -> None:
        self._run = seen.run
        self._plain = PlainOutput(seen.plan, seen.run, stream, output)
        self._events = size_of(seen.run.journal("launcher"))
        self._rows = size_of(seen.run.metrics)
        self._has_begun, self._queued = False, ""

    def show(self, seen: SeenRun) -> None:
        if seen.condition == "queued":
            if seen.where != self._queued:
                self._queued = seen.where
                self._plain.print(seen.where)
            return
        self._queued = ""  # a job that is queued again says so, also for the same reason
        if not self._has_begun:
            self._has_begun = True
            self._plain.on_attempt(seen.state.attempt, None)
            self._plain.print(position(seen.state, seen.condition, time.time()))
        self._plain.on_state(seen.state)
        path = self._run.journal("launcher")
        for line in lines_of(path, self._events):
            self._events += len(line)
            if event := parsed(line):
                self._plain.on_event(event)
        self._rows = min(self._rows, size_of(self._run.metrics))  # an attempt has cut the file
        for line in lines_of(self._run.metrics, self._rows):
            self._rows += len(line)
            if row := parsed_row(line):
                self._plain.on_row(row)

    def close(self) -> None:
        self._plain.on_end(0, "")


class JsonWatch(WatchView):
    """The state as one JSON object a line, wherever it has changed."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream, self._line = stream, ""

    def show(self, seen: SeenRun) -> None:
        data = seen.to_data()
        line = json.dumps({**data, "seconds": 0.0})
        if line != self._line:
            self._line = line
            self._stream.write(json.dumps(data) + "\n")
            self._stream.flush()
