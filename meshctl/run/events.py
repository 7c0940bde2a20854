"""The events of a run: one JSON line each, appended by the process that observed it.

Each process has a file of its own under `events/`. One event is one write to a file opened for appending, so
lines never mix, and a process that is killed loses no event that it has written. Readers follow all files of
the folder and fold the events.

    name                written by      value
    started, exited     agent           {"pid": n}; {"pid": n, "code": n}, negative for a signal
    ready               worker          {"last": n}, null where only a stop ends the run; `step` is the one
                                        before
                                        the first
    step                worker          {"seconds": s, "stages": {STAGE: s}, "waits": {STAGE: s},
                                        "routes": {ROUTE: bytes sent}} at the end of a step
    metric              worker          {"values": {NAME: number}, "weight": w,
                                        "collect": "mean" | "sum" | "first"} of the stage in `stage`
    saved               worker          {"seconds": s}: its part of the checkpoint of `step` is on disk
    done                worker          nothing; after its last step
    fault               worker, agent,  {"error": line, "traceback": text, "lost": bool, "peer": [GROUP,
                                        RANK]};
                        launcher        `lost` where a peer was lost
    launched, stopping, launcher        see `engines/supervise/head.py`
    resumed, checkpoint, over
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LINE = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Event:
    name: str
    group: str = ""
    rank: int | None = None
    """In the world of its group; None for an agent or the launcher."""
    step: int | None = None
    stage: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    """Seconds since the epoch, by the clock of the process that wrote it."""


class Journal:
    """One process's event file, for appending."""

    def __init__(self, path: Path, group: str = "", rank: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._group, self._rank = group, rank

    def write(
        self, name: str, *, rank: int | None = None, step: int | None = None, stage: str = "", **value: Any
    ) -> None:
        """Appends an `Event`."""
        who = self._rank if rank is None else rank
        event = {
            "name": name,
            "group": self._group,
            "rank": who,
            "step": step,
            "stage": stage,
            "value": value,
            "time": time.time(),
        }
        os.write(self._file, (_LINE.encode(event) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


class Follower:
    """All event files of a folder, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[Event]:
        """Yields the events since the last call. A line that is still being written waits for the next
        call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            start = self._read.get(path, 0)
            if path.stat().st_size <= start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            for line in whole.splitlines():
                yield Event(**json.loads(line))
