"""A worker's side of the progress record (`run.progress`), and the collectives that it counts.

    progress = Progress.from_environ(os.environ, attempt)
    progress.enter(Activity.RECEIVING, stage, now)
    calls = progress.calls_of("actor:dp")        # one for each process group of a component
    with calls.call(("all_reduce", "sum", torch.float32, 1024)):
        ...
    report.collectives = progress.end_step()

Each rank counts the operations that its own code calls, and chains a digest of them. Two ranks of a process
group that end a step with different counts or digests have not called the same collectives. Sends and
receives are not counted. The place of a call in the user's code is reported and not compared.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from time import perf_counter  # CLOCK_MONOTONIC on Linux, which all processes of a node share
from types import FrameType
from typing import Any, Self
from zlib import crc32

import torch

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.events import StepReport
from meshctl.run.progress import (
    ACTIVITY,
    ATTEMPT,
    CALLED,
    COLLECTIVE,
    DIGESTS,
    KEY_BYTES,
    OPERATION,
    PASS,
    PEER,
    RECORD_BYTES,
    ROUTE,
    ROW_BYTES,
    ROWS,
    SINCE,
    SITE,
    STAGE,
    STEP,
    TABLE,
    VARIABLE,
    VISIT,
    Activity,
    Record,
    decode,
    padded,
    text_of,
)
from meshctl.runtime.errors import CollectiveError
from meshctl.runtime.event_loop import PASS_CALL
from meshctl.runtime.routes.end import FORWARD, TAGS_PER_ROUTE, VALUES
from meshctl.runtime.torch_mesh import Row, TorchCalls
from meshctl.runtime.trace import Tracer

CACHED_MAX = 4096
"""Maximum number of cached texts of operations, and of call sites."""

Form = tuple[object, ...]
"""An operation with the properties that must be equal on all ranks: its dtype, shape and options."""


class Progress:
    """Writes the progress record of this worker."""

    def __init__(self, memory: memoryview | None = None, attempt: int = 0) -> None:
        """`memory` is the shared memory of the record. Without it, the record is not read, and only the
        counts are used."""
        self.is_read = memory is not None
        """True if another process reads the record."""
        self._bytes = memory if memory is not None else memoryview(bytearray(RECORD_BYTES))
        self._words, self._seconds = self._bytes.cast("q"), self._bytes.cast("d")
        self._words[ATTEMPT] = attempt
        self._calls: dict[str, CollectiveCalls] = {}
        self._in_collectives = 0.0
        """Seconds in collectives since they were last taken."""
        self.waits: WaitTimes | None = None
        """The seconds in which this worker waits for others, if a data plane counts them."""
        self.trace = Tracer()
        self.torch_calls = TorchCalls(self.new_row, is_read=self.is_read)
        self.has_all_checks = False
        """True if the `step` event contains every operation (`run.checks: all`)."""
        self._rows = 0
        """The number of rows in the table."""
        self.called: list[CollectiveCalls] = []
        """The counters with calls in the running step."""
        self.no_collectives_in = ""
        """The running endpoint, COMPONENT.METHOD, if it must not call collectives; else empty."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], attempt: int) -> Progress:
        """Returns the record in the shared memory of the node process; a private record if there is none."""
        descriptor, _, number = environ.get(VARIABLE, "").partition(":")
        if not number:
            return cls(None, attempt)
        with os.fdopen(int(descriptor), "r+b", buffering=0) as file:
            shared = memoryview(mmap.mmap(file.fileno(), 0))
        start = int(number) * RECORD_BYTES
        return cls(shared[start : start + RECORD_BYTES], attempt)

    @property
    def record(self) -> Record:
        return decode(bytes(self._bytes))

    # Where the worker is

    def begin_step(self, step: int) -> None:
        words = self._words
        if words[STEP] != step:
            words[VISIT] = 0
            words[STEP] = step
        self.trace.begin_step(step)

    def enter(self, activity: Activity, stage: int, now: float) -> None:
        """Begins an activity in a stage, by its index in the plan, at `now` in seconds of `perf_counter`."""
        self.torch_calls.sample()
        words = self._words
        words[STAGE] = stage + 1
        words[ACTIVITY] = activity
        self._seconds[SINCE] = now
        self.trace.enter(activity, stage, now)

    def wait_for(self, job_rank: int, route: int) -> None:
        """Begins to wait for a job rank to send or to receive on a route, by its index in the plan; -1 for
        none. A job rank of -1 ends the wait."""
        words = self._words
        words[ROUTE] = route + 1
        words[PEER] = job_rank + 1

    def advance(self) -> None:
        """Notes that the running activity advances, although the worker is where it was."""
        self._seconds[SINCE] = perf_counter()

    def next_pass(self, block: str) -> None:
        """Begins a pass of a `repeat` block. Passes are counted over the whole run."""
        self._words[PASS] += 1
        self.trace.next_pass(block)

    def end_step(self) -> dict[str, Any]:
        """Returns the collectives since the last `step` event, as data for the next one; empty for none."""
        words = self._words
        words[VISIT] += 1
        words[STAGE] = 0
        words[ACTIVITY] = Activity.BETWEEN_STEPS
        self._seconds[SINCE] = perf_counter()
        words[COLLECTIVE] = 0
        found = self.torch_calls.end_step()
        if self.called:
            found = {**found, **{calls.key: calls.end_step() for calls in self.called}}
            self.called.clear()
        self.trace.end_step()
        return found

    def report_waits(self, report: StepReport) -> None:
        """Moves the waits since the last call into the report of a step."""
        if self.waits:
            self.waits.move_to(report)

    def begin_end(self, step: int, visit: int) -> None:
        """Continues after an unannounced end, with the stages that run after the last step. Counts of a
        dropped step are discarded. `visit` is the number of `step` events for `step`."""
        self.torch_calls.end_step()
        for calls in self.called:
            calls.forget()
        self.called.clear()
        self._words[ACTIVITY] = Activity.BETWEEN_STEPS
        self._words[STEP], self._words[VISIT] = step, visit
        self.trace.drop_step(step)

    # Collectives

    def calls_of(self, key: str) -> CollectiveCalls:
        """Returns the counter of one process group. `key` is `COMPONENT:DIM,DIM`, equal on all its ranks."""
        if key not in self._calls:
            self._calls[key] = CollectiveCalls(key, self)
        return self._calls[key]

    def new_row(self, key: str) -> Row:
        """Returns a new row of the record's table. A row that does not fit into the record gets memory that
        is not read."""
        number, self._rows = self._rows, self._rows + 1
        if number >= ROWS or len(key.encode()) > KEY_BYTES:
            return memoryview(bytearray(RECORD_BYTES)).cast("q"), 0, number
        start = TABLE + number * ROW_BYTES
        self._bytes[start : start + KEY_BYTES] = padded(key, KEY_BYTES)
        return self._words, (start + KEY_BYTES) // 8, number

    def begin_call(self, number: int, operation: bytes, site: bytes) -> None:
        data, words = self._bytes, self._words
        data[SITE] = site
        data[OPERATION] = operation
        self._seconds[CALLED] = perf_counter()
        words[COLLECTIVE] = number + 1

    def end_call(self, key: str) -> None:
        self._words[COLLECTIVE] = 0
        begin, now = self._seconds[CALLED], perf_counter()
        self._in_collectives += now - begin
        if self.trace.is_on:
            facts = {"group": key, "at": text_of(bytes(self._bytes[SITE]))}
            self.trace.add("collective", text_of(bytes(self._bytes[OPERATION])), begin, now, facts)

    def take_collective_seconds(self) -> float:
        """Returns the seconds in collectives since the last call of this method, at the end of the call of an
        endpoint."""
        found, self._in_collectives = self._in_collectives, 0.0
        self.trace.leave(perf_counter())
        return found


class CollectiveCalls:
    """Counts this rank's collective operations in one process group, from `step` event to `step` event."""

    def __init__(self, key: str, progress: Progress) -> None:
        self.key = key
        self.count = self.digest = 0
        self._progress = progress
        self._words, self._first, self._number = progress.new_row(key)
        self._sites: dict[str, int] = {}
        """Call site -> number of calls in the running step."""
        self._sent: dict[str, int] = {}
        """The call sites in the last event that had them."""
        self._operations: list[str] = []
        """All operations of the running step, for `run.checks: all`."""
        self._depth = 0

    def call(self, form: Form) -> Self:
        """Counts an operation, which runs in the `with` block. Operations inside of the block are not
        counted."""
        self._depth += 1
        if self._depth == 1:
            self._count(form)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if not self._depth and kind is None:  # the record of a fault names the operation
            self._progress.end_call(self.key)

    def _count(self, form: Form) -> None:
        if in_pass := PASS_CALL.get():
            self._depth = 0
            raise CollectiveError(
                f"`{in_pass.endpoint}` calls a collective, and a pass of a block with `take` runs on one rank"
            )
        if endpoint := self._progress.no_collectives_in:
            self._depth = 0
            raise CollectiveError(
                f"`{endpoint}` calls a collective, and its `retry` may repeat the call on one rank only: "
                "leave out `retry`"
            )
        if not self.count:
            self._progress.called.append(self)
        text, operation = _form(form)
        name, site = call_site(sys._getframe(1))
        self.count += 1
        self.digest = crc32(text, self.digest)
        self._sites[name] = self._sites.get(name, 0) + 1
        if self._progress.has_all_checks:
            self._operations.append(f"`{text[:-1].decode()}` at {name}")
        words, first = self._words, self._first
        words[first] = self.count
        words[first + 1 + self.count % DIGESTS] = self.digest
        self._progress.begin_call(self._number, operation, site)

    def end_step(self) -> dict[str, Any]:
        """Returns the number and the digest of the operations since the last `step` event, and their call
        sites if these have changed. Resets the counter."""
        found: dict[str, Any] = {"count": self.count, "digest": self.digest}
        if self._sites != self._sent:
            found["sites"] = self._sent = self._sites
        if self._operations:
            found["operations"] = self._operations
        self.forget()
        return found

    def forget(self) -> None:
        self.count = self.digest = 0
        self._sites, self._operations = {}, []
        self._words[self._first] = 0


@lru_cache(CACHED_MAX)
def _form(form: Form) -> tuple[bytes, bytes]:
    """Returns a form as text: complete, and cut to the length in the record."""
    text = " ".join(map(_word, form)).encode()
    return text + b"\n", text[:64].ljust(64, b"\0")


def _word(part: object) -> str:
    if isinstance(part, torch.dtype):
        return str(part).removeprefix("torch.")
    return str(list(part)) if isinstance(part, tuple) else str(part)


_LIBRARIES = (str(PACKAGE_DIR / "runtime") + os.sep, str(Path(torch.__file__).parent) + os.sep)
"""Code in these folders is not the user's."""


def call_site(frame: FrameType | None) -> tuple[str, bytes]:
    """Returns `FILE:LINE` of the innermost frame in the user's code, from `frame` on, as text and as in the
    progress record; empty texts where there is none."""
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return _site(frame.f_code.co_filename, frame.f_lineno) if frame else _site("", 0)


@cache
def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES)


@lru_cache(CACHED_MAX)
def _site(name: str, line: int) -> tuple[str, bytes]:
    text = f"{name.removeprefix(os.getcwd() + os.sep)}:{line}" if name else ""
    return text, padded(text, SITE.stop - SITE.start)


class WaitTimes:
    """The seconds in which a worker does nothing but wait for others, by route: for its producers
    (`awaited`), for its consumers (`full`: they have not taken what was sent), or for ranks of this worker's
    own group (`peers`)."""

    def __init__(self, plan: Plan, group: str, progress: Progress) -> None:
        self._plan, self._group, self._progress = plan, group, progress
        self._seconds: dict[int, float] = {}
        """Tag -> the seconds since the last report."""
        self._tag, self._began = -1, 0.0

    def note(self, job_rank: int, tag: int) -> None:
        """Begins to wait for a job rank in a tag; a job rank of -1 ends the wait."""
        self._progress.wait_for(job_rank, tag // TAGS_PER_ROUTE)
        if job_rank < 0:
            self._seconds[self._tag] = self._seconds.get(self._tag, 0.0) + perf_counter() - self._began
        else:
            self._tag, self._began = tag, perf_counter()

    def move_to(self, report: StepReport) -> None:
        """Moves the waits since the last call to the report of a step."""
        seconds, self._seconds = self._seconds, {}
        routes = self._plan.routes
        for tag, waited in seconds.items():
            number, offset = divmod(tag, TAGS_PER_ROUTE)
            if not 0 <= number < 2 * len(routes):  # the tags of the end of a run follow those of the steps
                continue
            route = routes[number % len(routes)]
            source, target = self._plan.ends_of(route)
            sums = report.full if source == self._group else report.awaited
            if offset not in (VALUES, FORWARD) or source == target:
                sums = report.peers
            sums[route.name] = sums.get(route.name, 0.0) + waited
