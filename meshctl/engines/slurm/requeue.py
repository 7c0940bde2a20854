"""The observer that queues a job again after the signal before its time limit. Slurm itself queues a job
again that was preempted, or that has lost a node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from meshctl.engines.slurm.job import call
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.submission import Submission

SIGNAL = "SIGUSR2"
END_S = 5.0
"""Seconds in which this head has written its last event. Later events are of the next job."""


class Requeue:
    def __init__(self, run: RunDir, job: str) -> None:
        self._run, self._job = run, job
        self._has_saved = False
        """True if this job has published a checkpoint."""

    def on_attempt(self, number: int, step: int | None) -> None:
        pass

    def on_event(self, event: Event) -> None:
        self._has_saved = self._has_saved or event.name == "checkpoint"

    def on_row(self, row: Mapping[str, Any]) -> None:
        pass

    def on_end(self, code: int, reason: str) -> None:
        """Queues the job again, before the end of the run is written to `state.json`, so that its followers
        see that it goes on. Slurm ends this process some seconds later."""
        if not reason.startswith(SIGNAL):
            return
        if problem := self._requeue() if self._has_saved else "it has saved no step since it began":
            print(f"error: Slurm job {self._job} is not queued again: {problem}", file=sys.stderr, flush=True)
        else:
            Submission("slurm", self._job, time.time() + END_S).write(self._run)

    def _requeue(self) -> str:
        """Returns why the job is not queued again; empty if it is."""
        try:
            done = call("scontrol", "requeue", self._job)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return done.stderr.strip() if done.returncode else ""
