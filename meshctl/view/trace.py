"""`trace.json`: what all workers have recorded in the steps of `run.trace`, for https://ui.perfetto.dev.

    TraceWriter(plan, run)      the observer that writes it, in a thread, so the run does not wait
    Merging(plan, run, offsets) the events of all workers, a step at a time

It is written when a row of metrics shows that all workers have ended the last step of `run.trace`, and again
at the end of the run if they have recorded more by then.

In the Trace Event Format, a group on a node is a process, and a rank a thread of it; what runs beside
training is another thread. A span is a complete event ("X"), and a fault an instant ("i"). Times are
microseconds. At the time 0 the first worker began to record. The clock of each node is aligned by its
measured offset. Of a step that ran again, the spans of the last attempt count.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from meshctl.plan.model import Plan
from meshctl.run import clock
from meshctl.run.clock import Offset, best_at
from meshctl.run.directory import RunDir, replaced
from meshctl.run.events import Event as RunEvent
from meshctl.run.events import Observer, restart_line
from meshctl.run.trace_file import WorkerTrace

INSTANTS = ("fault", "stall", "checkpoint", "restarted", "stopping", "retried")
"""The events that are instants of the trace."""
INSTANTS_MAX = 1000
OFFSETS_MAX = 100
"""The number of the newest measurements that are kept of each node's clock."""
TEXT_MAX = 500
_EVENT = json.JSONEncoder(separators=(",", ":"), check_circular=False)
FIRST_ID = 10_000_000
"""The least number of a process or thread here. The kernel has none so large, and so torch's profiler uses
none of them."""
LAUNCHER = FIRST_ID
TICK = 0.125
"""The resolution of times in microseconds, a power of two."""
Event = dict[str, Any]


class TraceWriter(Observer):
    def __init__(self, plan: Plan, run: RunDir) -> None:
        assert plan.run.trace is not None
        self._plan, self._run, self._last = plan, run, plan.run.trace.steps[1]
        self._offsets: dict[int, deque[Offset]] = {}
        self._instants: deque[Instant] = deque(maxlen=INSTANTS_MAX)
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._written: object = None
        """The files of the workers, as they were when the trace was written."""

    def on_event(self, event: RunEvent) -> None:
        if event.name == "clock":
            node, value, error, at = (event.value[key] for key in ("node", "offset", "error", "at"))
            self._offsets.setdefault(node, deque(maxlen=OFFSETS_MAX)).append(Offset(value, error, at))
        elif event.name in INSTANTS:
            self._instants.append(self._instant(event))

    def on_row(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self._last and self._thread is None:
            self._thread = threading.Thread(target=self._try_to_write, name="trace", daemon=True)
            self._thread.start()

    def on_end(self, code: int, reason: str) -> None:
        """Writes the events that are not written yet. Raises `OSError`."""
        if self._thread:
            self._thread.join()
        if self._error is None and self._files() != self._written:
            self._try_to_write()
        if self._error:
            raise self._error

    def _instant(self, event: RunEvent) -> Instant:
        value = event.value
        text = value.get("error") or value.get("reason") or value.get("text") or ""
        line = "; ".join(text) if isinstance(text, list) else str(text)
        if event.name == "restarted":
            line = restart_line(event)
        job_rank = -1
        if event.rank is not None and event.group:
            job_rank = self._plan.group(event.group).first_job_rank + event.rank
        at = event.time - clock.now() + perf_counter()
        step = -1 if event.step is None else event.step
        return Instant(event.name, at, line[:TEXT_MAX], job_rank, step)

    def _files(self) -> list[tuple[str, int]]:
        found = self._run.traced("", 0).parent.glob("*.json*")
        return sorted((str(path), path.stat().st_size) for path in found)

    def _try_to_write(self) -> None:
        try:
            if self._files():
                path, separator = self._run.trace, ""
                merging = Merging(self._plan, self._run, {**self._offsets})
                try:
                    with replaced(path) as part, open(part, "x", encoding="utf-8", opener=_private) as file:
                        file.write('{"displayTimeUnit":"ms","traceEvents":[')
                        for event in merging.events(list(self._instants)):
                            file.write(f"{separator}\n{_EVENT.encode(event)}")
                            separator = ","
                        file.write("\n]}\n")
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(path)) from None
            self._written = self._files()
        except OSError as error:
            self._error = error


def _private(path: str, flags: int) -> int:
    """Opens a new file that only its owner can read."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class Instant(NamedTuple):
    """Something that happened."""

    name: str
    time: float
    """By the head's monotonic clock, in seconds."""
    text: str = ""
    job_rank: int = -1
    """The worker; -1 for the whole run."""
    step: int = -1


class Merging:
    def __init__(self, plan: Plan, run: RunDir, offsets: Mapping[int, Sequence[Offset]]) -> None:
        """`offsets` are the measurements of each node's clock."""
        assert plan.run.trace is not None
        first, last = plan.run.trace.steps
        self._plan, self._run, self._steps = plan, run, range(first, last + 1)
        self._places = Places(plan)
        self._traces = dict(self._traces_of(plan, run))
        """Job rank -> its trace."""
        self._shifts = {rank: self._shift(rank, offsets) for rank in self._traces}
        """Job rank -> seconds from its clock to that of the head."""
        begins = (trace.begin + self._shifts[rank] for rank, trace in self._traces.items())
        self._zero = min(begins, default=0.0)
        self._ends: dict[int, float] = {}
        """Job rank -> the end of its last span in microseconds."""

    def _traces_of(self, plan: Plan, run: RunDir) -> Iterator[tuple[int, WorkerTrace]]:
        for group in plan.groups:
            for worker in plan.workers(group.name) if group.program is None else ():
                path = run.traced(group.name, worker.rank)
                if path.exists() and (trace := WorkerTrace(path, self._steps)).attempts:
                    yield worker.job_rank, trace

    def _shift(self, job_rank: int, offsets: Mapping[int, Sequence[Offset]]) -> float:
        trace = self._traces[job_rank]
        node = self._plan.node_of(*self._plan.group_and_rank(job_rank)) if trace.node is None else trace.node
        found = offsets.get(node, ())
        best = best_at(found, trace.begin - found[0].value) if found else None
        return -best.corrected if best else 0.0

    def events(self, instants: Iterable[Instant] = ()) -> Iterator[Event]:
        """Yields all events of the trace."""
        for step in self._steps:
            attempts = {rank: trace.attempts.get(step, -1) for rank, trace in self._traces.items()}
            attempt = max(attempts.values(), default=-1)
            for job_rank, number in attempts.items():
                spans = self._traces[job_rank].read(step) if number == attempt >= 0 else ()
                for thread, category, name, first, last, facts in spans:
                    begin, end = self._time(job_rank, first), self._time(job_rank, last)
                    if not thread:
                        self._ends[job_rank] = max(end, self._ends.get(job_rank, end))
                    where = self._places.of(job_rank, thread)._asdict()
                    event = {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin}
                    yield from self._new_names()
                    yield {**event, **where, **({"args": facts} if facts else {})}
        end = max(self._ends.values(), default=0.0)
        for one in instants:
            if found := self._instant(one, end):
                yield found
        yield from self._new_names()

    def _new_names(self) -> Iterator[Event]:
        yield from self._places.new
        self._places.new.clear()

    def _time(self, job_rank: int, seconds: float) -> float:
        return microseconds(seconds + self._shifts[job_rank] - self._zero)

    def _instant(self, one: Instant, end: float) -> Event | None:
        """Returns an instant, of a thread or of the whole run, if it was in the steps that were recorded. A
        worker reports its fault after its last span."""
        time, place, scope = microseconds(one.time - self._zero), Place(LAUNCHER, LAUNCHER), "g"
        if one.job_rank in self._ends and one.step in self._steps:
            time, place, scope = min(time, self._ends[one.job_rank]), self._places.of(one.job_rank), "t"
        elif not 0 <= time <= end:
            return None
        event = {"ph": "i", "s": scope, "cat": "event", "name": one.name, "ts": time, **place._asdict()}
        return {**event, **({"args": {"text": one.text}} if one.text else {})}


def microseconds(seconds: float) -> float:
    """Returns a time in whole ticks. Sums and differences of these are exact in every program that reads the
    trace, so a span never seems to end after the one that contains it."""
    return round(seconds * 1e6 / TICK) * TICK


class Place(NamedTuple):
    """The process and the thread of events."""

    pid: int
    tid: int


class Places:
    """The processes and threads of a run."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._pids = plan, dict[tuple[str, int], int]()
        self._places: dict[tuple[int, str], Place] = {}
        """Job rank and thread -> its place."""
        self.new: list[Event] = [
            *_named("process", LAUNCHER, LAUNCHER, f"launcher of {plan.name}", 0),
            *_named("thread", LAUNCHER, LAUNCHER, "events", 0),
        ]
        """The events that name what has been used since this list was cleared."""

    def of(self, job_rank: int, thread: str = "") -> Place:
        found = self._places.get((job_rank, thread))
        if found is None:
            group, rank = self._plan.group_and_rank(job_rank)
            node, number = self._plan.worker(group, rank).node, len(self._places) + 1
            pid = self._pids.get((group, node))
            if pid is None:
                pid = self._pids[group, node] = FIRST_ID + len(self._pids) + 1
                where = f" on node {node}" if self._plan.cluster.nodes > 1 else ""
                self.new += _named("process", pid, pid, f"{group}{where}", pid - FIRST_ID)
            tid = 2 * FIRST_ID + number
            name = f"{group}:{rank}{f' {thread}' if thread else ''}"
            self.new += _named("thread", pid, tid, name, 2 * rank + bool(thread))
            found = self._places[job_rank, thread] = Place(pid, tid)
        return found


def _named(kind: str, pid: int, tid: int, name: str, index: int) -> Iterator[Event]:
    for what, value in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": value}
