"""Follows a run whose supervisor runs inside a job that an engine has submitted.

Events, rows of metrics and the outcome are read from the run directory. Signals are forwarded to the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshctl.engines.engine import Handle
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.head import FAILED, Outcome
from meshctl.engines.supervise.observers import Observers
from meshctl.engines.supervise.signals import Signals
from meshctl.run.events import Event
from meshctl.run.observer import Observer

POLL_S = 0.1


class Following:
    """The state of a run according to its events so far."""

    def __init__(self, attempt: Attempt, observers: Observers) -> None:
        self._attempt, self._observers = attempt, observers
        self.over: Mapping[str, Any] | None = None
        """The value of the `over` event."""

    def read(self) -> None:
        for event in self._attempt.follower.in_order():
            if event.name == "launched":
                self._begin(event)
            self._observers.on_event(event)
            for row in self._attempt.fold.add(event):
                self._observers.on_row(row)
            if event.name == "over":
                self.over = event.value

    def _begin(self, event: Event) -> None:
        self._observers.on_attempt(int(event.value["attempt"]), self._attempt.step)


def follow(handle: Handle, attempt: Attempt, signals: Signals, observers: Iterable[Observer]) -> Outcome:
    """Follows a run until its job has ended. Returns the outcome."""
    views = Observers(observers)
    following, passed = Following(attempt, views), 0
    while handle.running:
        if signals.count > passed:
            passed = signals.count
            handle.terminate() if passed == 1 else handle.kill()
        following.read()
        signals.wait(handle.files(), POLL_S)
        handle.poll()
    following.read()
    outcome = _outcome(following.over)
    views.on_end(outcome.code, outcome.reason)
    handle.close()
    return outcome


def _outcome(over: Mapping[str, Any] | None) -> Outcome:
    if over is None:
        return Outcome(FAILED, None, "the job has ended before its supervisor reported the end of the run")
    return Outcome(int(over.get("code", FAILED)), None, str(over.get("reason", "")))
