"""Launches of engines whose head runs inside a job: the launcher submits the job, and then follows the run as
`watch` does.

Ctrl-C on a terminal asks whether to stop the job or to leave it running. Without a terminal a signal stops
it, except SIGHUP, which leaves it running. A further signal cancels the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import cast

from meshctl.cli.forks import announced
from meshctl.cli.jobs import JobTarget, job_state, record_end
from meshctl.cli.output import REFUSED, refuse
from meshctl.cli.status import end_of, why_lost
from meshctl.engines.engine import CannotStart, Engine, JobEngine, SubmittedJob
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.signals import Signals
from meshctl.run.directory import Submission
from meshctl.run.finding import NoRun
from meshctl.view.live.seen_run import LOST_CODE, SeenRun
from meshctl.view.live.watching import polled, watch_view

STAYS = 0
"""The exit code of a launcher whose job goes on."""


def submit(engine: Engine, attempt: Attempt, is_detached: bool) -> int:
    """Submits the job of a prepared run, and follows it unless `is_detached`. Returns the exit code."""
    run, scheduler = attempt.run, cast(JobEngine, engine)
    os.close(attempt.lock)  # the head takes it
    try:
        job = scheduler.submit(attempt.plan, run)
        Submission(attempt.start.engine.name, job.number, time.time()).write(run)
    except CannotStart as error:
        record_end(run, REFUSED, str(error))
        return refuse(error, REFUSED)
    if is_detached:
        sys.stdout.write(announced(run, f"is {job.name}"))
        return 0
    print(f"{run.path} is {job.name}", flush=True)
    with Signals().handled() as signals:
        return Follower(job, SeenRun.of(run, attempt.plan, job_state), signals).follow()


class Follower:
    """Shows a run whose job was submitted, and passes signals on to it."""

    def __init__(self, job: SubmittedJob, seen: SeenRun, signals: Signals) -> None:
        self._job, self._seen, self._signals = job, seen, signals
        self._view = watch_view(seen, sys.stdout)
        self._handled = 0
        """The number of handled signals."""
        self._has_asked = False
        """True if the run was asked to stop."""

    def follow(self) -> int:
        """Returns the exit code of the run, or of this launcher if the job goes on without it."""
        seen = self._seen
        try:
            for seen in polled(self._seen, lambda seconds: self._signals.wait((), seconds)):
                if seen.is_live:
                    self._view.show(seen)
                if self._signals.count > self._handled and self._leaves(seen):
                    print(f"{seen.name} goes on; stop it: meshctl stop {seen.name}", file=sys.stderr)
                    return STAYS
            if seen.condition == "lost":
                record_end(seen.run, LOST_CODE, why_lost(seen))
                seen = seen.again()
            self._view.end(seen)
        except NoRun as error:
            return refuse(error)
        finally:
            self._view.close()
        return end_of(seen)

    def _leaves(self, seen: SeenRun) -> bool:
        """Handles a signal. Returns whether this process ends, and the job goes on."""
        self._handled = self._signals.count
        first = self._signals.first or signal.SIGINT
        try:
            if self._has_asked:
                print(f"cancels {self._job.name}", file=sys.stderr)
                self._job.cancel()
            elif first == signal.SIGHUP or not self._is_to_stop():
                self._signals.first = None
                return True
            else:
                self._has_asked = True
                print(f"{seen.name} stops; a second signal cancels {self._job.name}", file=sys.stderr)
                JobTarget(seen.run, self._job).send(signal.Signals(first))
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
        return False

    def _is_to_stop(self) -> bool:
        """Asks on a terminal whether to stop the job. Without one, the job is stopped."""
        if self._signals.first != signal.SIGINT or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        self._view.close()
        sys.stderr.write(f"\nstop {self._job.name}? [y/N; without an answer it goes on] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return False
        with suppress(NoRun):
            self._seen = self._seen.again()
        self._view = watch_view(self._seen, sys.stdout)
        return True
