"""The observer that writes `trace.json`: when a row of metrics shows that all workers have ended the last
step of `run.trace`, and again at the end of the run if they have recorded more by then.

A thread writes it, so the run does not wait.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from meshctl.plan.model import Plan
from meshctl.run import clock
from meshctl.run.clock_offset import Offset
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, restart_line
from meshctl.view.trace.merging import Instant, Merging
from meshctl.view.trace.profile_times import move

INSTANTS = ("fault", "stall", "checkpoint", "restarted", "stopping", "retried")
"""The events that are instants of the trace."""
INSTANTS_MAX = 1000
OFFSETS_MAX = 100
"""The number of the newest measurements that are kept of each node's clock."""
TEXT_MAX = 500
_EVENT = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class TraceWriter:
    def __init__(self, plan: Plan, run: RunDir) -> None:
        assert plan.run.trace is not None
        self._plan, self._run, self._last = plan, run, plan.run.trace.steps[1]
        self._smaller: dict[int, Plan] = {}
        """Attempt -> its plan, where groups have fewer workers."""
        self._offsets: dict[int, deque[Offset]] = {}
        self._instants: deque[Instant] = deque(maxlen=INSTANTS_MAX)
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._written: object = None
        """The files of the workers, as they were when the trace was written."""

    def on_attempt(self, number: int, step: int | None) -> None:
        pass

    def on_event(self, event: Event) -> None:
        if event.name == "clock":
            node, value, error, at = (event.value[key] for key in ("node", "offset", "error", "at"))
            self._offsets.setdefault(node, deque(maxlen=OFFSETS_MAX)).append(Offset(value, error, at))
        elif event.name == "launched" and (plan := self._smaller_plan(str(event.value.get("digest", "")))):
            self._smaller[int(event.value["attempt"])] = plan
        elif event.name in INSTANTS:
            self._instants.append(self._instant(event))

    def _smaller_plan(self, digest: str) -> Plan | None:
        path = self._run.smaller_plan(digest)
        return Plan.read(path) if digest != self._plan.digest and path.exists() else None

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

    def _instant(self, event: Event) -> Instant:
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
        """Returns the files of the workers and their sizes."""
        found = self._run.traced("", 0).parent.glob("*.json*")
        return sorted((str(path), path.stat().st_size) for path in found)

    def _try_to_write(self) -> None:
        try:
            if self._files():
                self._write()
            self._written = self._files()
        except OSError as error:
            self._error = error

    def _write(self) -> None:
        """Writes the trace event by event and renames it, so that a reader never sees a part."""
        path = self._run.trace
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                merging = Merging(self._plan, self._run, {**self._offsets}, {**self._smaller})
                separator = ""
                file.write('{"displayTimeUnit":"ms","traceEvents":[')
                for event in merging.events(list(self._instants)):
                    file.write(f"{separator}\n{_EVENT.encode(event)}")
                    separator = ","
                file.write("\n]}\n")
            part.rename(path)
            for profile, name, time in merging.profiles():
                move(profile, name, time)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from None
