"""A run as plain lines, for a log or a pipe: no color, no cursor, nothing rewritten.

    rollout:0: loading 1.2 GB of weights
    step 57/200  12.4 s  exam.reward 0.61  metrics.loss 0.07  rollout waits 61 % for train (metrics)

One line a step, or one a second where steps are faster. The last step always has its line. It ends with where
the time of the attempt goes, as far as there is room in 80 columns. The lines of workers are those that
`output.py` chooses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TextIO

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, restart_line
from meshctl.view.formatting import count, duration, number
from meshctl.view.live.output import Output, OutputThread
from meshctl.view.live.run_state import RunState, download_line, notice_after, saving_line
from meshctl.view.pictures.text.styled import visible
from meshctl.view.times import extended

INTERVAL_S = 1.0
"""Minimum time of the run between two lines of steps."""
DOWNLOAD_INTERVAL_S = 10.0
"""Minimum time between two lines about a download."""


class PlainOutput:
    """Prints a run as it goes on."""

    def __init__(self, plan: Plan, run: RunDir, stream: TextIO, output: Output | None = None) -> None:
        self._plan, self._run, self._stream = plan, run, stream
        self._state = RunState(plan)
        self._running: set[str] = set()
        self._has_begun = False
        """True if the first attempt of this launch has begun."""
        self._printed_at: float | None = None
        self._downloaded_at = 0.0
        """The time of the last line about a download."""
        self._saving_step = 0
        """The step of the last checkpoint of which workers have said that they write it beside training."""
        self._pending: dict[str, Any] = {}
        """The newest value of each metric since the last line."""
        self._lock = threading.Lock()
        self._hint = output.hint if output else ""
        self._output = OutputThread(output, self.print) if output else None

    def on_attempt(self, number: int, step: int | None) -> None:
        self._state.on_attempt(number, step)
        if self._has_begun:  # the event `restarted` shows it
            self._printed_at, self._saving_step, self._pending = None, 0, {}
            self._running.clear()
            return
        self._has_begun = True
        groups, workers = count(len(self._plan.groups), "group"), count(self._plan.job_size, "worker")
        self.print(f"{self._plan.name}: {groups}, {workers}, in {self._run.path}")
        if self._hint:
            self.print(self._hint)
        if step is not None:
            self.print(f"continues after step {step}")

    def on_event(self, event: Event) -> None:
        was_known = bool(self._state.source)
        self._state.on_event(event)
        if self._state.source and not was_known:
            self.print(f"the run ends with the data of `{self._state.source}`: step {self._state.steps}")
        match event.name:
            case "started" | "ready":
                self._print_running(event.group)
            case "saving" if (event.step or 0) > self._saving_step:
                self._saving_step = event.step or 0
                self.print(saving_line(event))
            case "checkpoint":
                self.print(f"checkpoint of step {event.step}: {event.value.get('path', '')}".rstrip(": "))
            case "download":
                is_first = not event.value.get("received")
                if is_first or event.time - self._downloaded_at >= DOWNLOAD_INTERVAL_S:
                    self._downloaded_at = event.time
                    self.print(download_line(event.value))
            case "restarted":
                self.print(f"{restart_line(event)} ({count(event.value.get('left', 0), 'restart')} left)")
            case "stall":
                self.print("\n".join(event.value.get("text", ())))
            case "warning" | "stopping":
                self.print(notice_after(event, ""))

    def on_state(self, state: RunState) -> None:
        """Replaces the state by a newer one, which another process has folded."""
        self._state = state
        for name in state.groups:
            self._print_running(name)

    def _print_running(self, name: str) -> None:
        group = self._state.groups.get(name)
        if group and name not in self._running and group.state == "running":
            self._running.add(name)
            phases = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in group.slow_phases)
            after = f" after {phases}" if phases else ""
            self.print(f"{name}: {count(group.workers, 'worker')} running{after}")

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        if self._output and self._state.last is None:
            self._output.on_row()
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
        line = "  ".join([f"step {step}{steps}", duration(time), *values])
        self.print(extended(line, self._state.time_use))
        self._printed_at, self._pending = time, {}

    def on_end(self, code: int, reason: str) -> None:
        if self._output:
            self._output.end(self._state.failed)
        self._print_step()

    def print(self, text: str) -> None:
        with self._lock:
            self._stream.write("\n".join(map(visible, text.split("\n"))) + "\n")
            self._stream.flush()
