"""Merges the traces of the workers into one trace, a step at a time.

    merging = Merging(plan, run, offsets)
    for event in merging.events(instants): ...

At the time 0 the first worker began to record. The clock of each node is aligned by its measured offset. Of a
step that ran again, the spans of the last attempt count. In memory are the spans of one worker in one step,
and the sent frames that are still to be received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from meshctl.plan.model import Plan
from meshctl.run.clock_offset import Offset, best_at
from meshctl.run.directory import RunDir
from meshctl.run.trace_file import Span, WorkerTrace
from meshctl.view.trace.events import TICK, Event, Place, Places, flow, instant, microseconds, slice_of

Key = tuple[int, int, int, int, int, int]
"""A frame: attempt, step, sender, receiver, tag, number."""


class Instant(NamedTuple):
    """Something that happened."""

    name: str
    time: float
    """By the head's monotonic clock, in seconds."""
    text: str = ""
    job_rank: int = -1
    """The worker; -1 for the whole run."""
    step: int = -1


class _Sent(NamedTuple):
    """A frame that was sent, in microseconds."""

    place: Place
    begin: float
    """The beginning of its span."""
    time: float


class Merging:
    def __init__(
        self,
        plan: Plan,
        run: RunDir,
        offsets: Mapping[int, Sequence[Offset]],
        smaller: Mapping[int, Plan] | None = None,
    ) -> None:
        """`offsets` are the measurements of each node's clock, and `smaller` are the plans of the attempts in
        which groups have fewer workers than in `plan`."""
        assert plan.run.trace is not None
        first, last = plan.run.trace.steps
        self._plan, self._run, self._steps = plan, run, range(first, last + 1)
        self._smaller = smaller or {}
        self._places, self._flows = Places(plan), count(1)
        self._traces = dict(self._traces_of(plan, run))
        """Job rank -> its trace."""
        self._lag = max((stage.lag for stage in plan.stages), default=0)
        self._shifts = {rank: self._shift(rank, offsets) for rank in self._traces}
        """Job rank -> seconds from its clock to that of the head."""
        begins = (trace.begin + self._shifts[rank] for rank, trace in self._traces.items())
        self._zero = min(begins, default=0.0)
        self._ends: dict[int, float] = {}
        """Job rank -> the end of its last span in microseconds."""
        self._sent: dict[Key, _Sent] = {}

    def _traces_of(self, plan: Plan, run: RunDir) -> Iterator[tuple[int, WorkerTrace]]:
        for group in plan.groups:
            for worker in plan.workers(group.name) if group.program is None else ():
                path = run.traced(group.name, worker.rank)
                if path.exists() and (trace := WorkerTrace(path, self._steps)).attempts:
                    yield worker.job_rank, trace

    def _shift(self, job_rank: int, offsets: Mapping[int, Sequence[Offset]]) -> float:
        group, rank = self._plan.group_and_rank(job_rank)
        last = self._smaller.get(max(self._traces[job_rank].attempts.values()), self._plan)
        found = offsets.get(last.worker(group, rank).node, ())
        best = best_at(found, self._traces[job_rank].begin - found[0].value) if found else None
        return -best.corrected if best else 0.0

    def profiles(self) -> Iterator[tuple[Path, str, float]]:
        """Yields the files of torch's profiler, each with the name of a range in it and its time in the
        trace, in microseconds."""
        for job_rank, trace in self._traces.items():
            path, (name, time) = self._run.profile(*self._plan.group_and_rank(job_rank)), trace.mark
            if name and path.exists():
                yield path, name, self._time(job_rank, time)

    # Events

    def events(self, instants: Iterable[Instant] = ()) -> Iterator[Event]:
        """Yields all events of the trace."""
        for step in self._steps:
            for event in self._events_of(step):
                yield from self._new_names()
                yield event
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

    def _events_of(self, step: int) -> Iterator[Event]:
        attempts = {rank: trace.attempts.get(step, -1) for rank, trace in self._traces.items()}
        attempt = max(attempts.values(), default=-1)
        ranks = [rank for rank, number in attempts.items() if number == attempt >= 0]
        self._sent = {key: sent for key, sent in self._sent.items() if key[1] >= step - self._lag}
        for job_rank in ranks:
            for span in self._traces[job_rank].read(step).spans:
                yield self._slice(job_rank, span, attempt)
        for job_rank in ranks:  # they are read again, because those of all workers may need much memory
            for span in self._traces[job_rank].read(step).spans:
                if span[5] and "from" in span[5]:
                    yield from self._arrow(job_rank, span, attempt)

    def _slice(self, job_rank: int, span: Span, attempt: int) -> Event:
        thread, category, name, first, last, some = span
        begin = self._time(job_rank, first)
        end = self._time(job_rank, last)
        if not thread:
            self._ends[job_rank] = max(end, self._ends.get(job_rank, end))
        place, facts = self._places.of(job_rank, thread), some or {}
        if category == "frame" and "to" in facts:
            self._note_sent(
                job_rank, _Sent(place, begin, self._time(job_rank, facts["sent"])), facts, attempt
            )
            names = self._named(facts["to"], attempt)
            name, facts = f"send {name}", {"to": names, "bytes": facts["bytes"]}
        elif category == "frame":
            names = self._named([facts["from"]], attempt)
            name, facts = f"receive {name}", {"from": names, "bytes": facts["bytes"]}
        return slice_of(place, category, name, begin, end, facts)

    def _named(self, frames: Sequence[tuple[int, int]], attempt: int) -> str:
        plan = self._smaller.get(attempt, self._plan)
        return ", ".join(":".join(map(str, plan.group_and_rank(rank))) for rank, _ in frames)

    def _whole_rank(self, job_rank: int, attempt: int) -> int:
        """Returns the job rank, in the whole plan, of a worker of an attempt."""
        if attempt not in self._smaller:
            return job_rank
        group, rank = self._smaller[attempt].group_and_rank(job_rank)
        return self._plan.group(group).first_job_rank + rank

    def _note_sent(self, job_rank: int, sent: _Sent, facts: Mapping[str, Any], attempt: int) -> None:
        for receiver, number in facts["to"]:
            to = self._whole_rank(receiver, attempt)
            self._sent[attempt, facts["of"], job_rank, to, facts["tag"], number] = sent

    def _arrow(self, job_rank: int, span: Span, attempt: int) -> Iterator[Event]:
        """Yields the arrow to a received frame, if its sending was recorded, and if it does not point back in
        time, as within the error of two clocks."""
        thread, _, name, begin, end, facts = span
        sender, number = self._whole_rank(facts["from"][0], attempt), facts["from"][1]
        sent = self._sent.pop((attempt, facts["of"], sender, job_rank, facts["tag"], number), None)
        if sent is None:
            return
        at = max(self._time(job_rank, begin), self._time(job_rank, end) - TICK)
        start = min(sent.time, at)
        if start >= sent.begin:
            received = self._places.of(job_rank, thread), at
            yield from flow(next(self._flows), name, (sent.place, start), received)

    def _instant(self, one: Instant, end: float) -> Event | None:
        """Returns an instant if it was in the steps that were recorded. A worker reports its fault after its
        last span."""
        time = microseconds(one.time - self._zero)
        if one.job_rank in self._ends and one.step in self._steps:
            last = self._ends[one.job_rank]
            return instant(self._places.of(one.job_rank), one.name, min(time, last), one.text)
        return instant(None, one.name, time, one.text) if 0 <= time <= end else None
