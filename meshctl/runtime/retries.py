"""Endpoints that are called again after an exception: `@endpoint(retry=2)`.

Only the rank whose call has failed repeats it, so such an endpoint must not call collectives: its peers would
not take part a second time. Before each repetition the borrowed batches must be unchanged, the generators are
seeded as at first, and what the failed call has logged is dropped. What it has changed in its component
stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from meshctl.plan.model import Stage
from meshctl.run.events import EventLog
from meshctl.runtime.errors import CollectiveError, StageError
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.progress import Progress

METRIC = "retries"
"""The metric STAGE.retries: how many calls were repeated in a step, over all ranks."""


class Retries:
    def __init__(
        self, times: int, stage: Stage, state: StepState, progress: Progress, events: EventLog
    ) -> None:
        """`times` is how often a call is repeated."""
        self._times, self._stage, self._state = times, stage, state
        self._progress, self._events = progress, events
        self._endpoint = f"{stage.component}.{stage.method}"

    def call(self, endpoint: Callable[[], Any], reset: Callable[[], None]) -> Any:
        """Returns the value of an endpoint. Repeats the call after an exception, and calls `reset` before.
        Raises the exception of the last call, and `StageError` if the endpoint calls a collective."""
        failed = 0
        while True:
            try:
                value = self._without_collectives(endpoint)
            except (CollectiveError, StageError):
                raise
            except Exception as error:
                if failed == self._times:
                    raise
                failed += 1
                self._report(error, failed)
                reset()
            else:
                if failed:
                    self._state.report.add_metric(self._stage.name, {METRIC: float(failed)}, 1.0, "sum")
                return value

    def _without_collectives(self, endpoint: Callable[[], Any]) -> Any:
        progress = self._progress
        before = progress.torch_calls.sample()
        progress.no_collectives_in = self._endpoint
        try:
            return endpoint()
        finally:
            progress.no_collectives_in = ""
            if progress.torch_calls.sample()[: len(before)] != before:
                raise StageError(
                    f"`{self._endpoint}` called a collective of its `torch_mesh`, and its `retry` may repeat "
                    "the call on one rank only: leave out `retry`"
                )

    def _report(self, error: Exception, failed: int) -> None:
        name, step = type(error).__name__, self._state.report.step
        times = f"{failed} of {self._times}"
        print(
            f"meshctl: step {step}: `{self._endpoint}` raised {name} and is called again ({times})",
            file=sys.stderr,
        )
        self._events.write("retried", step=step, stage=self._stage.name, error=name, times=failed)
