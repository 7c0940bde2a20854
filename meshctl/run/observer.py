"""The observer protocol: what watches a run and cannot disturb it.

The supervisor calls the observers of a run: the dashboard or the plain output, and the trackers. It calls
them from one thread, in this order:

    on_attempt, (on_event | on_row)*, on_attempt, ..., on_end
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from meshctl.run.events import Event


class Observer(Protocol):
    def on_attempt(self, number: int, step: int | None) -> None:
        """Attempt `number` begins. Its first step is the one after `step`, or the first of the run where that
        is None. Rows of later steps, which an earlier attempt produced, no longer count."""

    def on_event(self, event: Event) -> None:
        """Something has happened. Events of one process arrive in order."""

    def on_row(self, row: Mapping[str, Any]) -> None:
        """A step is complete: `step`, `time`, and its metrics by `STAGE.NAME`. The row of the last step may
        arrive again with more metrics."""

    def on_end(self, code: int, reason: str) -> None:
        """The run is over, with an exit code and the cause or the signal. Called once, and last."""
