"""The job to which a run was submitted, for engines whose head runs inside the job: `RUN/job.json`.

    Submission("slurm", "123", time.time()).write(run)
    Submission.of(run)              None for a run that was not submitted

An `AskJob` asks the scheduler for the state of the job of a run. Only the command line has one, because it
knows the engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.reading import DAMAGED, decoded, text_of

Phase = Literal["queued", "running", "ended"]


@dataclass(frozen=True)
class Submission:
    engine: str
    job: str
    """The name of the job, as the scheduler knows it."""
    submitted: float
    """The time at which it was submitted, or queued again, in seconds since the epoch."""

    @classmethod
    def of(cls, run: RunDir) -> Submission | None:
        """Returns the job of a run; None for a run without one, or if the file is damaged."""
        try:
            data = decoded(text_of(run.job))
            return cls(str(data["engine"]), str(data["job"]), float(data["submitted"]))
        except (OSError, *DAMAGED):
            return None

    def write(self, run: RunDir) -> None:
        """Raises `OSError`."""
        write_whole(run.job, json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True)
class JobState:
    """The state of a job, according to its scheduler."""

    name: str
    """The job in messages, e.g. "Slurm job 123"."""
    phase: Phase
    text: str = ""
    """The scheduler's own words, e.g. "PENDING (Resources)"; empty if it does not know the job any more."""
    submitted: float = 0.0
    cause: str = ""
    """The reason that the scheduler, or somebody, has ended a part of the job; empty if it is unknown."""


AskJob = Callable[[RunDir], JobState | None]
"""Returns the state of the job of a run; None without a job, or if the scheduler does not answer."""


def unasked(run: RunDir) -> JobState | None:
    """Asks nobody."""
    return None
