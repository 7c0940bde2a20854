"""The times of steps of all workers, read from the events of a run that may have millions of them.

found = read_events(run)
found.spans["train", 0]       the steps of a worker, one by one or several together, in the order of time
found.newest["train", 0]      its newest steps, each with its stages
found.others                  all other events

Of long event files only every n-th step is decoded, so the time for a run is bounded. Folded events are sums
of several steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.event_files import EventFiles, event_files
from meshctl.run.events import Event, parsed
from meshctl.run.reading import lines_of, size_of

MAX_DECODED = 60_000
"""About how many `step` events are decoded."""
LINE_BYTES = 180
"""The size of a `step` event, at least."""
MAX_NEWEST = 60
"""Number of newest steps of a worker that are kept with all their parts."""
MAX_OTHERS = 50_000
_STEP, _METRIC = b'{"name":"step"', b'{"name":"metric"'
Worker = tuple[str, int]
"""(group, rank)"""


@dataclass(slots=True)
class Span:
    """One step of a worker, or several."""

    begin: float
    """Seconds since the epoch, as `end`."""
    end: float
    first: int
    last: int
    seconds: float
    """The seconds, summed over its steps, as in `stages`, `waits` and `sends`."""
    stages: Mapping[str, float]
    waits: Mapping[str, float]
    sends: Mapping[str, float]
    """Stage -> seconds until its value was sent; nothing for a run of an earlier version."""


@dataclass
class StepSpans:
    spans: dict[Worker, list[Span]] = field(default_factory=dict)
    newest: dict[Worker, list[Span]] = field(default_factory=dict)
    others: list[Event] = field(default_factory=list)
    """All events but those of steps and metrics, in the order of time."""


def read_events(run: RunDir) -> StepSpans:
    found, processes = StepSpans(), event_files(run.events)
    size = sum(size_of(run.events / name) for each in processes for _, name in each.names_from(-1))
    every = max(1, size // LINE_BYTES // MAX_DECODED)
    for process in processes:
        _Reader(run, process, every).read(found)
    found.others = sorted(found.others[:MAX_OTHERS], key=lambda event: event.time)
    return found


class _Reader:
    """Reads the events of one process."""

    def __init__(self, run: RunDir, process: EventFiles, every: int) -> None:
        self._run, self._process, self._every = run, process, every

    def read(self, found: StepSpans) -> None:
        newest: deque[bytes] = deque(maxlen=MAX_NEWEST)
        left = 1
        for line in self._lines():
            if line.startswith(_STEP):
                newest.append(line)
                left -= 1
                if left:
                    continue
                left = self._every
            if not line.startswith(_METRIC) and (event := parsed(line)):
                self._add(event, found)
        spans = [span for event in map(parsed, newest) if event and (span := span_of(event))]
        if spans and (who := self._worker(newest[-1])):
            found.newest[who] = spans

    def _lines(self) -> Iterator[bytes]:
        for _, name in self._process.names_from(-1):
            yield from lines_of(self._run.events / name)

    def _worker(self, line: bytes) -> Worker | None:
        event = parsed(line)
        return (event.group, event.rank) if event and event.rank is not None else None

    def _add(self, event: Event, found: StepSpans) -> None:
        if event.name not in ("step", "steps"):
            found.others.append(event)
        elif event.rank is not None and (span := span_of(event)):
            spans = found.spans.setdefault((event.group, event.rank), [])
            if self._every > 1 and spans and 0 < span.first - spans[-1].last <= self._every:
                span = stretched(span, spans[-1].end)
            spans.append(span)


def span_of(event: Event) -> Span | None:
    """Returns the times of a `step` or `steps` event; None where they are damaged."""
    value: Mapping[str, Any] = event.value
    try:
        seconds, last = float(value["seconds"]), int(event.step or 0)
        stages, waits, sends = (dict(value.get(key, {})) for key in ("stages", "waits", "sends"))
        first = int(value.get("first", last))
    except (KeyError, TypeError, ValueError):
        return None
    return Span(event.time - seconds, event.time, first, last, seconds, stages, waits, sends)


def stretched(span: Span, begin: float) -> Span:
    """Returns a step that represents itself and the undecoded steps before it, from `begin` on."""
    if not 0 < span.seconds < span.end - begin:
        return span
    factor = (span.end - begin) / span.seconds
    stages, waits, sends = (
        {name: seconds * factor for name, seconds in parts.items()}
        for parts in (span.stages, span.waits, span.sends)
    )
    return Span(begin, span.end, span.first, span.last, span.seconds * factor, stages, waits, sends)
