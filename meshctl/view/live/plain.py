"""A run as plain lines, for a log or a pipe: no colour, no cursor, nothing rewritten.

    step 57/200  12.4 s  exam.reward 0.61  metrics.loss 0.07

One line a step, or one a second where steps are faster; the last step always has its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.view.formatting import count, duration, number
from meshctl.view.live.run_state import Tally

INTERVAL = 1.0
"""Seconds of the run between two lines."""


class Lines:
    def __init__(self, plan: Plan, run: RunDir, stream: TextIO) -> None:
        self._plan, self._run, self._stream = plan, run, stream
        self._tally = Tally(plan)
        self._running: set[str] = set()
        self._printed: float | None = None
        self._held: dict[str, Any] = {}
        """The newest of everything that was measured since the last line."""

    def on_attempt(self, number: int, step: int | None) -> None:
        pass  # its events say the same

    def on_event(self, event: Event) -> None:
        self._tally.on_event(event)
        match event.name:
            case "launched":
                workers = count(self._plan.places, "worker")
                self._say(
                    f"{self._plan.name}: {count(len(self._plan.groups), 'group')}, {workers}, in {self._run.path}"
                )
            case "started" | "ready":
                self._say_running(event.group)
            case "resumed":
                self._say(f"continues after step {event.step}" if event.step is not None else "continues")
            case "checkpoint":
                self._say(f"checkpoint of step {event.step}: {event.value.get('path', '')}".rstrip(": "))
            case "stopping":
                reason = event.value.get("reason", "")
                self._say(f"stopping: {reason}" if reason else "stopping")

    def _say_running(self, group: str) -> None:
        if (
            group in self._tally.groups
            and group not in self._running
            and self._tally.groups[group].state == "running"
        ):
            self._running.add(group)
            self._say(f"{group}: {count(self._tally.groups[group].workers, 'worker')} running")

    def on_row(self, metrics: Mapping[str, Any]) -> None:
        self._tally.on_row(metrics)
        self._held.update(metrics)
        if self._printed is None or metrics["time"] - self._printed >= INTERVAL:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        step, time = self._held["step"], self._held["time"]
        steps = f"/{self._tally.steps}" if self._tally.steps else ""
        values = [
            f"{name} {number(self._held[name])}" for name, _ in self._tally.shown() if name in self._held
        ]
        self._say("  ".join([f"step {step}{steps}", duration(time), *values]))
        self._printed, self._held = time, {}

    def on_end(self, code: int, reason: str) -> None:
        self._flush()

    def _say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
