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

from rich.console import Console
from rich.live import Live
from rich.text import Text

from meshctl.run.events import parsed
from meshctl.run.metrics import parsed_row
from meshctl.run.reading import lines_of, size_of
from meshctl.view.live.dashboard import Picture, StepTimes, newest_logs
from meshctl.view.live.output import Output
from meshctl.view.live.plain import PlainOutput
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.summary import position
from meshctl.view.pictures.text.styled import visible

POLL_S = 1.0
"""Seconds between two looks at a run. The launcher writes its state once a second."""


class WatchView:
    def show(self, seen: SeenRun) -> None: ...

    def end(self, seen: SeenRun) -> None:
        self.show(seen)

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
    if stream.isatty() and environ.get("TERM", "") not in ("", "dumb"):
        return LivePicture(stream, output)
    return PlainWatch(seen, stream, output)


class LivePicture(WatchView):
    """The picture of `launch`, drawn once a second."""

    def __init__(self, stream: TextIO, output: Output) -> None:
        self._output, self._stall, self._times = output, list[str](), StepTimes()
        self._live = Live(console=Console(file=stream), auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def show(self, seen: SeenRun) -> None:
        state = seen.state
        if state.last:
            self._output.end_first_lines()
        for worker, text in self._output.new():
            self._print(f"{worker}: {text}")
        if state.stalled and state.stall != self._stall:
            self._print("\n".join(state.stall))
            self._stall = state.stall
        logs = newest_logs(state, dict(self._output.newest), self._output.hint)
        notice, times = seen.where or state.notice, self._times.text(state)
        picture = Picture.of(state, seen.seconds, notice, logs, times)
        self._live.update(picture, refresh=True)

    def end(self, seen: SeenRun) -> None:
        for worker, text in self._output.last(seen.state.failed):
            self._print(f"{worker}: {text}")
        self._live.update(Picture.last(seen.state, seen.seconds), refresh=True)
        self.close()
        self._live.console.print()

    def close(self) -> None:
        """Leaves the last picture on the terminal."""
        self._live.stop()

    def _print(self, line: str) -> None:
        self._live.console.print(Text("\n".join(map(visible, line.split("\n")))), soft_wrap=True)


class PlainWatch(WatchView):
    """The plain lines of `launch`, from now on."""

    def __init__(self, seen: SeenRun, stream: TextIO, output: Output) -> None:
        self._run = seen.run
        self._plain = PlainOutput(seen.plan, seen.run, stream)
        self._stream, self._output = stream, output
        self._events = size_of(seen.run.journal("launcher"))
        self._rows = size_of(seen.run.metrics)
        self._has_begun, self._queued = False, ""

    def show(self, seen: SeenRun) -> None:
        if seen.condition == "queued":
            if seen.where != self._queued:
                self._queued = seen.where
                self._print(seen.where)
                self._stream.flush()
            return
        self._queued = ""  # a job that is queued again says so, also for the same reason
        if not self._has_begun:
            self._has_begun = True
            self._plain.on_attempt(seen.state.attempt, None)
            self._print(position(seen.state, seen.condition, time.time()))
        self._plain.on_state(seen.state)
        for worker, text in self._output.new():
            self._print(f"{worker}: {text}")
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
        self._stream.flush()

    def end(self, seen: SeenRun) -> None:
        self.show(seen)
        for worker, text in self._output.last(seen.state.failed):
            self._print(f"{worker}: {text}")
        self._plain.on_end(seen.code, seen.state.reason)

    def _print(self, line: str) -> None:
        self._stream.write(f"{line}\n")


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
