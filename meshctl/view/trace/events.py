"""Events of the Trace Event Format, as https://ui.perfetto.dev reads it.

A group on a node is a process, and a rank a thread of it; what runs beside training is another thread. A span
is a complete event ("X"), the way of a frame a flow from its sending ("s") to its receipt ("f"), and a fault
an instant ("i"). Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan

FIRST_ID = 10_000_000
"""The least number of a process or thread here. The kernel has none so large, and so torch's profiler uses
none of them."""
LAUNCHER = FIRST_ID
TICK = 0.125
"""The resolution of times in microseconds, a power of two."""
Event = dict[str, Any]


def microseconds(seconds: float) -> float:
    """Returns a time in whole ticks. Sums and differences of these are exact in every program that reads the
    trace, so a span never seems to end after the one that contains it."""
    return round(seconds * 1e6 / TICK) * TICK


@dataclass(frozen=True)
class Place:
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
            found = self._places[job_rank, thread] = self._made(job_rank, thread)
        return found

    def _made(self, job_rank: int, thread: str) -> Place:
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
        return Place(pid, tid)


def _named(kind: str, pid: int, tid: int, name: str, index: int) -> Iterator[Event]:
    for what, value in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": value}


def slice_of(
    place: Place, category: str, name: str, begin: float, end: float, args: Mapping[str, Any]
) -> Event:
    """Returns a span. Its times are microseconds."""
    event = {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin}
    return {**event, "pid": place.pid, "tid": place.tid, **({"args": args} if args else {})}


def flow(number: int, name: str, sent: tuple[Place, float], received: tuple[Place, float]) -> Sequence[Event]:
    """Returns an arrow between the spans that contain its two ends, in microseconds."""
    common = {"cat": "frame", "name": name, "id": number}
    return [
        {"ph": "s", **common, "ts": sent[1], "pid": sent[0].pid, "tid": sent[0].tid},
        {"ph": "f", "bp": "e", **common, "ts": received[1], "pid": received[0].pid, "tid": received[0].tid},
    ]


def instant(place: Place | None, name: str, time: float, text: str) -> Event:
    """Returns an event without a duration: of a thread, or of the whole run."""
    where = place or Place(LAUNCHER, LAUNCHER)
    event = {"ph": "i", "s": "t" if place else "g", "cat": "event", "name": name, "ts": time}
    return {**event, "pid": where.pid, "tid": where.tid, **({"args": {"text": text}} if text else {})}
