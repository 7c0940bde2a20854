"""Records what a worker does in the steps of `run.trace`.

    tracer = Tracer(plan.stages, plan.run.trace, path, profile, attempt)
    progress.trace = data_plane.trace = tracer      whose activities, collectives and frames are spans
    with tracer.span("checkpoint", "checkpoint"):   a part of the run that they do not show
        ...

A worker without a trace has a `Tracer()`, which records nothing. At the end of each step its spans are
written to the worker's file, so a killed worker loses the spans of one step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from meshctl.plan.model import Stage
from meshctl.run.progress import Activity
from meshctl.run.settings import Trace
from meshctl.run.trace_file import SPANS_MAX, SPANS_PER_STEP_MAX, TraceFile

SPANS = {
    Activity.RECEIVING: ("wait", "inputs of {}"),
    Activity.CALLING: ("stage", "{}"),
    Activity.SENDING: ("send", "send {}"),
    Activity.SYNCING: ("sync", "{}"),
}
"""Activity -> the category and the name of its span. That of a checkpoint contains `SAVING`."""


class _Open(NamedTuple):
    category: str
    name: str
    begin: float


class Tracer:
    """Records spans in a window of steps, from the beginning of its first one until the end of its last."""

    is_on = False
    """True while spans are recorded."""

    def __init__(
        self,
        stages: Sequence[Stage] = (),
        settings: Trace | None = None,
        path: Path = Path(),
        profile: Path = Path(),
        node: int = 0,
        attempt: int = 0,
    ) -> None:
        """`path` is the worker's file, and `profile` the file of torch's profiler. `node` is the worker's.
        Without `settings` nothing is recorded."""
        self._stages, self._window = stages, settings.steps if settings else (0, -1)
        self._path, self._node, self._attempt = path, node, attempt
        self._profiler = Profiler(profile) if settings and settings.profiler else None
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
        self._number = 0
        self._block = ""
        """The block of the last pass."""
        self._passes: dict[str, int] = {}
        """Block -> the number of its passes in this step."""

    # Steps

    def begin_step(self, step: int) -> None:
        """Begins a step."""
        if not self.is_on and self._window[0] <= step <= self._window[1]:
            begin = perf_counter()
            try:
                self._file, self.is_on = TraceFile(self._path), True
                if self._profiler:
                    self._profiler.begin()
                self._file.begin(self._attempt, self._node, step - 1, begin)
            except OSError as error:
                self._give_up(error)
        if self.is_on:
            self._number = step
            self._passes.clear()
            self._step = _Open("step", f"step {step}", perf_counter())

    def end_step(self) -> None:
        """Ends a step, and writes its spans."""
        if self.is_on and self._number >= self._window[1]:
            self.end()
        elif self.is_on:
            self._write()

    def drop_step(self, step: int) -> None:
        """Drops the spans of the running step, which is not part of the run because the data ended in it.
        Stages with `when: end` run in `step`."""
        self._step = self._pass = self._activity = None
        self._spans, self._dropped = [], 0
        if step < self._window[0]:
            self.end()

    def end(self) -> None:
        """Writes the recorded spans, and records nothing from now on."""
        if self.is_on:
            self._write()
            self._close()

    def _close(self) -> None:
        file, self._file, self.is_on, self._window = self._file, None, False, (0, 0)
        if file:
            file.close()
            if self._profiler:
                self._profiler.end()

    def _give_up(self, error: OSError) -> None:
        print(f"meshctl: the trace is not written: {error.strerror}: {self._path}", file=sys.stderr)
        self._close()

    def _write(self) -> None:
        """Writes the spans of a step, which ends now."""
        now = perf_counter()
        self._end_pass(now)
        if opened := self._step:
            self._step = None
            self.add(*opened, now)
        spans, dropped = self._spans, self._dropped
        self._spans, self._dropped = [], 0
        self._count += len(spans)
        if dropped:
            print(f"meshctl: the trace of step {self._number} lacks {dropped:,} spans", file=sys.stderr)
        if self._file and (spans or dropped):
            try:
                self._file.add(self._attempt, self._number, spans, dropped)
            except OSError as error:
                self._give_up(error)

    # Activities

    def enter(self, activity: Activity, stage: int, now: float) -> None:
        """Begins an activity in a stage, by its index in the plan, and ends the one before."""
        if not self.is_on:
            return
        self.leave(now)
        found = SPANS.get(activity)
        if found is None or stage < 0:
            return
        name = self._stages[stage].name
        if self._block != self._stages[stage].block:
            self._end_pass(now)
        self._activity = _Open(found[0], found[1].format(name), max(now, self._left))
        if self._profiler and activity is Activity.CALLING:
            self._profiler.enter(name)

    def leave(self, now: float) -> None:
        """Ends the activity that runs."""
        if opened := self._activity:
            self._activity, self._left = None, now
            self.add(*opened, now)
            if self._profiler:
                self._profiler.leave()

    def next_pass(self, block: str) -> None:
        """Begins a pass of a `repeat` block."""
        if self.is_on:
            now = perf_counter()
            self._end_pass(now)
            number = self._passes[block] = self._passes.get(block, 0) + 1
            self._block, self._pass = block, _Open("pass", f"{block} pass {number}", now)

    def _end_pass(self, now: float) -> None:
        self.leave(now)
        if opened := self._pass:
            self._pass = None
            self.add(*opened, now)

    # Spans

    def add(
        self, category: str, name: str, begin: float, end: float, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Adds a span of this thread, in seconds of `perf_counter`."""
        if not self.is_on or threading.get_ident() != self._thread:
            return
        if len(self._spans) >= SPANS_PER_STEP_MAX or self._count >= SPANS_MAX:
            self._dropped += 1
        else:
            self._spans.append(("", category, name, begin, end, facts))

    @contextmanager
    def span(self, category: str, name: str) -> Iterator[None]:
        """Records the `with` block as one span, from any thread."""
        begin, is_main = perf_counter(), threading.get_ident() == self._thread
        was_on = self.is_on
        if was_on and is_main:
            self._end_pass(begin)
        try:
            yield
        finally:
            now = perf_counter()
            if self.is_on and is_main:
                self.leave(now)
                self.add(category, name, begin, now)
            elif self.is_on and was_on:
                thread = threading.current_thread().name.partition("_")[0]
                self._spans.append((thread, category, name, begin, now, None))


class Profiler:
    """torch's profiler in the steps of `run.trace`. Calls of stages are ranges with names."""

    def __init__(self, path: Path) -> None:
        """`path` is the file that torch's profiler writes."""
        self._path = path
        self._profile: profile | None = None
        self._range: record_function | None = None

    def begin(self) -> None:
        """Begins to record, unless another profiler runs."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        try:
            self._profile.start()
        except RuntimeError as error:
            self._fail(error)

    def enter(self, name: str) -> None:
        if self._profile:
            self._range = record_function(name)
            self._range.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        if self._range:
            self._range.__exit__(None, None, None)
            self._range = None

    def end(self) -> None:
        """Writes the file, which takes about as long as the steps."""
        self.leave()
        found, self._profile = self._profile, None
        if found is None:
            return
        part = self._path.with_name(f".{self._path.name}")
        try:
            found.stop()
            found.export_chrome_trace(str(part))
            part.chmod(0o600)
            part.rename(self._path)
        except (RuntimeError, OSError) as error:
            self._fail(error)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _fail(self, error: Exception) -> None:
        self._profile = None
        print(f"meshctl: torch's profiler does not record: {error}", file=sys.stderr)
