"""Decides by `run.restarts` if a run starts another attempt after a failure.

    restarts = Restarts(plan.run.restarts)
    reason = restarts.refusal(cause, has_begun, now)        why the run ends instead; empty if it starts again
    restarts.left(now)

A death, a lost peer or node, and an exception start another attempt. Wrong numbers, ranks that called
different collectives, and an environment that lacks something would only fail again, and so would a failure
before step 1 of the first attempt, and the same exception in the same step: unless one worker has raised it
twice in a row and the run goes on without this worker, whose device may be broken.
"""

from __future__ import annotations

from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.plan import model
from meshctl.text.english import counted, in_units


class Restarts:
    def __init__(self, allowed: model.Restarts | None) -> None:
        self._allowed = allowed
        self._times: list[float] = []
        """The times of the restarts, in seconds of the monotonic clock."""
        self._seen: set[tuple[str, int | None, str]] = set()
        """The exceptions that have ended attempts: stage, step and type."""
        self._has_begun = False
        """True if an attempt has begun a step."""

    @property
    def are_allowed(self) -> bool:
        """True if the recipe asks for restarts."""
        return self._allowed is not None

    def refusal(
        self, cause: Cause | None, has_begun: bool, now: float, is_without_worker: bool = False
    ) -> str:
        """Returns why the run is not started again after an attempt; empty if it is. Counts the restart.
        `has_begun`: a worker was ready for its first step. `is_without_worker`: the next attempt does without
        the worker that has failed."""
        self._has_begun = self._has_begun or has_begun
        if self._allowed is None or cause is None:
            return "`run.restarts` is left out"
        if not self._has_begun:
            return "it failed before step 1"
        if self._is_repeated(cause) and not is_without_worker:
            return "the same exception was raised in the same step before"
        if not self.left(now):
            times = counted(self._allowed.times, "restart")
            return f"`run.restarts` allows {times} within {in_units(self._allowed.within)}"
        self._times.append(now)
        return ""

    def permits(self, cause: Cause, now: float) -> bool:
        """Returns whether a single group is started again because of a failure, and counts the restart if it
        is. Where it is not, the whole run may be (`refusal`)."""
        key = self._key(cause)
        if not self.left(now) or key in self._seen:
            return False
        if key:
            self._seen.add(key)
        self._times.append(now)
        return True

    def left(self, now: float) -> int:
        """Returns how many restarts are left."""
        if self._allowed is None:
            return 0
        recent = [time for time in self._times if now - time < self._allowed.within]
        return max(0, self._allowed.times - len(recent))

    @staticmethod
    def _key(cause: Cause) -> tuple[str, int | None, str] | None:
        """Returns the stage, the step and the type of an exception; None for another failure. The text may
        have addresses in it, so the type counts."""
        if cause.priority is not Priority.OWN or cause.code is not None or cause.step is None:
            return None
        return cause.stage, cause.step, cause.error.partition(":")[0]

    def _is_repeated(self, cause: Cause) -> bool:
        """Notes an exception, and returns whether it has ended an attempt before."""
        exception = self._key(cause)
        if exception is None:
            return False
        is_repeated = exception in self._seen
        self._seen.add(exception)
        return is_repeated
