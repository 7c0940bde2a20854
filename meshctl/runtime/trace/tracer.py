"""Records the activities of a worker in the steps of `run.trace`.

    tracer = Tracer(plan, progress, data_plane, path, attempt)
    tracer.begin_step(step)                         in each step; begins to record in the first one
    with tracer.span("checkpoint", "checkpoint"):   parts of the run that the progress record does not show
        ...

Outside of these steps nothing is recorded and nothing is slower: the tracer gives the worker's `Progress` and
`DataPlane` other classes when it begins (`traced.py`), and their own ones when it ends. At the end of each
step its spans are written to the worker's file, so a killed worker loses the spans of one step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from meshctl.plan.model import Plan
from meshctl.run.progress import Activity
from meshctl.run.settings import Trace
from meshctl.run.trace_file import SPANS_MAX, SPANS_PER_STEP_MAX, TraceFile
from meshctl.runtime.progress import Progress
from meshctl.runtime.trace.no_trace import NoTrace
from meshctl.runtime.trace.profiler import Profiler
from meshctl.runtime.trace.traced import TracedDataPlane, TracedProgress
from meshctl.runtime.transports.data_plane import DataPlane

SPANS = {
    Activity.RECEIVING: ("wait", "inputs of {}"),
    Activity.CALLING: ("stage", "{}"),
    Activity.SENDING: ("send", "send {}"),
    Activity.SYNCING: ("sync", "{}"),
}
"""Activity -> the category and the name of its span. That of a checkpoint contains `SAVING`."""


class _Open(NamedTuple):
    """A span that has not ended."""

    category: str
    name: str
    begin: float


class Tracer(NoTrace):
    def __init__(
        self,
        plan: Plan,
        settings: Trace,
        progress: Progress,
        data_plane: DataPlane,
        path: Path,
        profile: Path,
        attempt: int,
    ) -> None:
        """`path` is the worker's file, and `profile` the file of torch's profiler."""
        self._stages, self._settings = plan.stages, settings
        self._progress, self._data_plane = progress, data_plane
        self._path, self._attempt = path, attempt
        self._profiler = Profiler(profile) if settings.profiler else None
        self._file: TraceFile | None = None
        self._thread = threading.get_ident()
        self._spans: list[Sequence[Any]] = []
        self._count = self._dropped = 0
        """The number of spans that were written, and of those beyond the limits in this step."""
        self._step: _Open | None = None
        self._pass: _Open | None = None
        self._activity: _Open | None = None
        self._left = 0.0
        """The end of the last activity."""
        self._background: dict[int, _Open] = {}
        """Thread -> its span. Other threads than the main one have one at a time."""
        self._number = 0
        self._block = ""
        """The block of the last activity."""
        self._passes: dict[str, int] = {}
        """Block -> the number of its passes in this step."""
        self.frames_of = 0
        """The step to which frames belong."""
        self._frames: dict[tuple[str, int, int, int], int] = {}
        """Direction, step, job rank and tag -> the number of frames so far."""

    # The window

    def begin_step(self, step: int) -> None:
        first, last = self._settings.steps
        if self._file is None and first <= step <= last:
            self._begin(step)

    def _begin(self, step: int) -> None:
        begin = perf_counter()
        try:
            self._file = TraceFile(self._path)
            mark = self._profiler.begin() if self._profiler else None
            TracedProgress.begin(self._progress, self)
            TracedDataPlane.begin(self._data_plane, self)
            self._file.begin(self._attempt, step - 1, begin, mark)
        except OSError as error:
            self._give_up(error)

    def end(self) -> None:
        if self._file:
            self._write(is_cut=True)
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        TracedProgress.end(self._progress)
        TracedDataPlane.end(self._data_plane)
        file.close()
        if self._profiler:
            self._profiler.end()

    def _give_up(self, error: OSError) -> None:
        """Ends the trace, because its file cannot be written. The run goes on."""
        print(f"meshctl: the trace is not written: {error.strerror}: {self._path}", file=sys.stderr)
        self._settings = Trace((0, 0))
        self._close()

    # Called by the traced progress record

    def open_step(self, step: int) -> None:
        self._number = self.frames_of = step
        self._passes.clear()
        self._step = _Open("step", f"step {step}", perf_counter())

    def enter(self, activity: Activity, stage: int, now: float) -> None:
        self.leave(now)
        found = SPANS.get(activity)
        if found is None or stage < 0:
            return
        begin = max(now, self._left)
        name, block = self._stages[stage].name, self._stages[stage].block
        if self._pass and self._pass.name and self._block != block:
            self._end_pass(now)
        elif self._pass and not self._pass.name:
            self._passes[block] = self._passes.get(block, 0) + 1
            self._pass = self._pass._replace(name=f"{block} pass {self._passes[block]}")
        self._block = block
        self._activity = _Open(found[0], found[1].format(name), begin)
        if self._profiler and activity is Activity.CALLING:
            self._profiler.enter(name)

    def leave(self, now: float) -> None:
        """Ends the activity that runs."""
        if opened := self._activity:
            self._activity, self._left = None, now
            self.add(opened.category, opened.name, opened.begin, now)
            if self._profiler:
                self._profiler.leave()

    def next_pass(self) -> None:
        now = perf_counter()
        self._end_pass(now)
        self._pass = _Open("pass", "", now)

    def _end_pass(self, now: float) -> None:
        self.leave(now)
        if opened := self._pass:
            self._pass = None
            self.add(opened.category, opened.name or "pass", opened.begin, now)

    def end_step(self) -> None:
        if self._number >= self._settings.steps[1]:
            self.end()
        else:
            self._write()

    def drop_step(self, step: int) -> None:
        """Drops the spans of the running step, which is not part of the run because the data ended in it.
        Stages with `when: end` run in `step`."""
        self._step = self._pass = self._activity = None
        self._spans, self._dropped = [], 0
        if step < self._settings.steps[0]:
            self.end()

    def _write(self, *, is_cut: bool = False) -> None:
        """Writes the spans of a step. Those that have not ended end now if it `is_cut`."""
        now = perf_counter()
        self._end_pass(now)
        if is_cut:
            for thread in list(self._background):
                self._end_background(thread, now)
        if opened := self._step:
            self._step = None
            self.add(opened.category, opened.name, opened.begin, now)
        spans, dropped = self._spans, self._dropped
        self._spans, self._dropped = [], 0
        self._frames = {key: count for key, count in self._frames.items() if key[1] != self._number}
        self._count += len(spans)
        if dropped:
            print(f"meshctl: the trace of step {self._number} lacks {dropped:,} spans", file=sys.stderr)
        if self._file and (spans or dropped):
            try:
                self._file.add(self._attempt, self._number, spans, dropped)
            except OSError as error:
                self._give_up(error)

    # Spans

    def add(self, category: str, name: str, begin: float, end: float, facts: Any = None) -> None:
        """Adds a span of the main thread, in seconds of `perf_counter`."""
        if len(self._spans) >= SPANS_PER_STEP_MAX or self._count >= SPANS_MAX:
            self._dropped += 1
            return
        self._spans.append(("", category, name, begin, end, facts))

    @contextmanager
    def span(self, category: str, name: str) -> Iterator[None]:
        if self._file is None:
            yield
            return
        thread, opened = threading.get_ident(), _Open(category, name, perf_counter())
        if thread == self._thread:
            self._end_pass(opened.begin)
        else:
            self._background[thread] = opened
        try:
            yield
        finally:
            if self._file and thread == self._thread:
                self.leave(perf_counter())
                self.add(*opened, perf_counter())
            elif self._file:
                self._end_background(thread, perf_counter())

    def _end_background(self, thread: int, now: float) -> None:
        if opened := self._background.pop(thread, None):
            name = next((one.name for one in threading.enumerate() if one.ident == thread), "")
            self._spans.append((name.partition(" of ")[0], *opened, now, None))

    @contextmanager
    def weights_of(self, step: int) -> Iterator[None]:
        before, self.frames_of = self.frames_of, step
        try:
            yield
        finally:
            self.frames_of = before

    # Frames

    def add_sent(self, to: Sequence[int], tag: int, nbytes: int, begin: float, sent: float) -> None:
        """Adds a frame that was sent at `sent`, after the wait for slots and memory since `begin`."""
        end, of = perf_counter(), self.frames_of
        numbers = [[job_rank, self._next("to", job_rank, tag)] for job_rank in to]
        facts = {"tag": tag, "of": of, "to": numbers, "bytes": nbytes, "sent": sent}
        self.add("frame", self._name_of(tag), begin, end, facts)

    def add_received(self, source: int, tag: int, nbytes: int, begin: float) -> None:
        end, of = perf_counter(), self.frames_of
        facts = {"tag": tag, "of": of, "from": [source, self._next("from", source, tag)], "bytes": nbytes}
        self.add("frame", self._name_of(tag), begin, end, facts)

    def _next(self, direction: str, job_rank: int, tag: int) -> int:
        key = direction, self.frames_of, job_rank, tag
        number = self._frames[key] = self._frames.get(key, 0) + 1
        return number

    def _name_of(self, tag: int) -> str:
        return self._data_plane.context.route_of(tag) or "comparison of peers"
