"""The jobs of schedulers to which runs were submitted, for the commands that show and end runs.

SeenRun.named(word, folder, job_state)        asks the scheduler
job_of(run)                                   the job itself, to signal or cancel it
"""

from __future__ import annotations

import math
import signal
import time
from dataclasses import replace
from typing import cast

from meshctl.engines.engine import ENGINES, JobEngine, SubmittedJob, engine_named
from meshctl.engines.supervise.signals import Signals
from meshctl.run.directory import JobState, RunDir, Submission
from meshctl.run.events import Journal

ASK_S = 2.0
"""Seconds between two questions to a scheduler, which serves many users."""


def job_of(run: RunDir) -> SubmittedJob | None:
    """Returns the job to which a run was submitted; None without one, or if its engine is unknown."""
    submission = Submission.of(run)
    if submission is None or submission.engine not in ENGINES:
        return None
    try:
        choice = run.read_start().engine
    except (OSError, ValueError):
        return None
    options = choice.options if choice.name == submission.engine else {}
    engine = cast(JobEngine, engine_named(submission.engine, options))
    return engine.submitted(run, submission.job)


class AskScheduler:
    """Asks for the state of jobs, of each at most once in `ASK_S`."""

    def __init__(self) -> None:
        self._answers = dict[str, tuple[float, JobState | None]]()
        """The run directory -> when the scheduler was asked, and its answer."""

    def __call__(self, run: RunDir) -> JobState | None:
        submission, key = Submission.of(run), str(run.path)  # read anew: its head may queue a job again
        when, state = self._answers.get(key, (-math.inf, None))
        if time.monotonic() - when >= ASK_S:
            job = job_of(run) if submission else None
            state = job.state() if job else None
            self._answers[key] = time.monotonic(), state
        return replace(state, submitted=submission.submitted) if state and submission else None

    def forget(self, run: RunDir) -> None:
        """Makes the next question about a job a new one."""
        self._answers.pop(str(run.path), None)


job_state = AskScheduler()


class JobTarget:
    """The head of a run inside a job, as `stop` signals it: in place of the `Launcher` of other runs."""

    def __init__(self, run: RunDir, job: SubmittedJob) -> None:
        self._run, self._job = run, job

    def ignores(self, number: signal.Signals) -> bool:
        return False

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal to the head. A job that has not begun is cancelled, and the end is recorded. Returns
        whether the job had not ended. Raises `OSError` with a sentence."""
        state = self._job.state()
        if state is None or state.phase == "ended":
            return False
        if state.phase == "queued":
            self._job.cancel()
            record_end(self._run, Signals.CODES.get(number, 143), "it was cancelled before it began")
        else:
            self._job.signal(number)
        return True

    def wait(self, seconds: float) -> bool:
        """Waits this long, and returns whether the job has ended."""
        time.sleep(seconds)
        state = job_state(self._run)
        return state is not None and state.phase == "ended"


def record_end(run: RunDir, code: int, reason: str) -> None:
    """Writes the `over` event of a run whose head has ended without writing one."""
    journal = Journal(run.journal("launcher"))
    journal.write("over", code=code, reason=reason)
    journal.close()
