"""Reads a `trace.json` back, and checks what the Trace Event Format and Perfetto demand of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class Slice:
    name: str
    category: str
    begin: float
    end: float
    args: dict[str, Any]
    parent: Slice | None = None
    children: list[Slice] = field(default_factory=list)

    def all(self) -> Iterator[Slice]:
        """Yields this slice and everything in it."""
        yield self
        for child in self.children:
            yield from child.all()

    def named(self, category: str) -> list[str]:
        """Returns the names of the slices of a category in it, in their order."""
        return [one.name for one in self.all() if one.category == category]


@dataclass
class Trace:
    threads: dict[str, list[Slice]]
    """Name of a thread -> its outermost slices, in their order."""
    instants: list[Event]
    processes: list[str]

    def steps(self, thread: str) -> dict[str, Slice]:
        return {one.name: one for one in self.threads[thread]}

    def slices(self) -> Iterator[tuple[str, Slice]]:
        for thread, some in self.threads.items():
            for outer in some:
                yield from ((thread, one) for one in outer.all())


def read_back(path: Path) -> Trace:
    """Raises `AssertionError` if the file is not what the format demands."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document.keys() == {"displayTimeUnit", "traceEvents"}
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert type(event["pid"]) is int and type(event["tid"]) is int and event["name"]
        by_kind[event["ph"]].append(event)
    assert by_kind.keys() <= {"M", "X", "i"}
    names = {
        (event["name"], event["tid"] if "thread" in event["name"] else event["pid"]): event["args"]
        for event in by_kind["M"]
    }
    threads = _nested(by_kind["X"])
    for pid, tid in {(event["pid"], event["tid"]) for kind in "Xi" for event in by_kind[kind]}:
        assert ("process_name", pid) in names and ("thread_name", tid) in names
    named = {tid: str(names["thread_name", tid]["name"]) for tid in threads}
    return Trace(
        {named[tid]: slices for tid, slices in threads.items()},
        by_kind["i"],
        [args["name"] for (kind, _), args in names.items() if kind == "process_name"],
    )


def _nested(events: list[Event]) -> dict[int, list[Slice]]:
    """Returns thread -> its outermost slices. Each other slice lies within one, and none overlap."""
    threads: dict[int, list[Slice]] = defaultdict(list)
    for tid in {event["tid"] for event in events}:
        own = [event for event in events if event["tid"] == tid]
        opened: list[Slice] = []
        for event in sorted(own, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert begin >= 0 and event["dur"] >= 0
            one = Slice(event["name"], event["cat"], begin, end, event.get("args", {}))
            while opened and opened[-1].end <= begin:
                opened.pop()
            if opened:
                assert end <= opened[-1].end, f"{one.name} overlaps {opened[-1].name}"
                one.parent = opened[-1]
            (opened[-1].children if opened else threads[tid]).append(one)
            opened.append(one)
    return threads
