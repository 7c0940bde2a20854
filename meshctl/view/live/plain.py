"""A run as plain lines, for a log or a pipe: no color, no cursor, nothing rewritten.

    rollout:0: loading 1.2 GB of weights
    step 57/200  12.4 s  exam.reward 0.61  metrics.loss 0.07

Before the first step, the lines that rank 0 of each group logs; then one line a step, or one a second where
steps are faster. The last step always has its line.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.view.formatting import count, duration, number
from meshctl.view.live.logs import POLL_S, GroupLogs
from meshctl.view.live.run_state import RunState

INTERVAL_S = 1.0
"""Of the run's time, between two lines."""
MAX_LOG_LINES = 20
"""Log lines of one group that are printed."""


TRACEBACK = "Traceback (most recent call last)"
"""Ends the lines of a group of components: the launcher reports the first cause with its traceback."""


class PlainOutput:
    """Prints a run as it goes on. A thread of its own reads the log files until the first step."""

    def __init__(self, plan: Plan, run: RunDir, stream: TextIO, logs: GroupLogs | None = None) -> None:
        self._plan, self._run, self._stream = plan, run, stream
        self._state = RunState(plan)
        self._running: set[str] = set()
        self._printed_at: float | None = None
        self._pending: dict[str, Any] = {}
        """The newest value of each metric since the last line."""
        self._logs, self._logged = logs, Counter[str]()
        self._component_groups = {group.name for group in plan.groups if group.program is None}
        self._lock, self._logs_over = threading.RLock(), threading.Event()
        if logs:
            threading.Thread(target=self._follow_logs, name="logs", daemon=True).start()

    def on_attempt(self, number: int, step: int | None) -> None:
        groups, workers = count(len(self._plan.groups), "group"), count(self._plan.job_size, "worker")
        self._print(f"{self._plan.name}: {groups}, {workers}, in {self._run.path}")
        if self._logs:
            self._print(self._logs.hint)
        if step is not None:
            self._print(f"continues after step {step}")

    def on_event(self, event: Event) -> None:
        self._state.on_event(event)
        match event.name:
            case "started" | "ready":
                self._print_running(event.group)
            case "checkpoint":
                self._print(f"checkpoint of step {event.step}: {event.value.get('path', '')}".rstrip(": "))
            case "stopping":
                reason = event.value.get("reason", "")
                self._print(f"stopping: {reason}" if reason else "stopping")

    def _print_running(self, name: str) -> None:
        group = self._state.groups.get(name)
        if group and name not in self._running and group.state == "running":
            self._running.add(name)
            self._print(f"{name}: {count(group.workers, 'worker')} running")

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        self._end_logs()
        self._state.on_row(metrics)
        self._pending.update(metrics)
        if self._printed_at is None or metrics["time"] - self._printed_at >= INTERVAL_S:
            self._print_step()

    def _print_step(self) -> None:
        if not self._pending:
            return
        step, time = self._pending["step"], self._pending["time"]
        steps = f"/{self._state.steps}" if self._state.steps else ""
        values = [
            f"{name} {number(self._pending[name])}"
            for name, _ in self._state.shown()
            if name in self._pending
        ]
        self._print("  ".join([f"step {step}{steps}", duration(time), *values]))
        self._printed_at, self._pending = time, {}

    def print_logs(self) -> None:
        """Prints the log lines that are new, at most `MAX_LOG_LINES` of each group."""
        with self._lock:
            for group, line in self._logs.new_lines() if self._logs else ():
                self._logged[group] += 1
                if line.startswith(TRACEBACK) and group in self._component_groups:
                    self._logged[group] = MAX_LOG_LINES + 2
                if self._logged[group] <= MAX_LOG_LINES:
                    self._print(f"{group}:0: {line}")
                elif self._logs and self._logged[group] == MAX_LOG_LINES + 1:
                    self._print(f"{group}:0: more in {self._logs.path(group)}")

    def _follow_logs(self) -> None:
        with suppress(OSError, ValueError):  # the reader of the stream has gone
            while not self._logs_over.wait(POLL_S):
                self.print_logs()

    def _end_logs(self) -> None:
        if not self._logs_over.is_set():
            self._logs_over.set()
            self.print_logs()

    def on_end(self, code: int, reason: str) -> None:
        self._end_logs()
        self._print_step()

    def _print(self, text: str) -> None:
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()
