"""A run as another process sees it, while it goes on and afterwards.

seen = SeenRun.named("grpo", "runs")
seen.state, seen.condition, seen.launcher
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.run.checkpoints import steps_of
from meshctl.run.directory import AskJob, JobState, RunDir, Submission, unasked
from meshctl.run.finding import NoRun, find, name_of
from meshctl.run.launcher import Launcher
from meshctl.run.reading import DAMAGED
from meshctl.view.live.run_state import Condition, GroupState, RunState
from meshctl.view.live.state_file import read_state
from meshctl.view.live.summary import means

LIVE: tuple[Condition, ...] = ("queued", "running", "stalled", "stopping")
LOST_CODE = 5
"""The exit code that stands for a run that is lost."""


@dataclass(frozen=True)
class SeenRun:
    run: RunDir
    plan: Plan
    state: RunState
    launcher: Launcher | None
    condition: Condition
    job: JobState | None = None
    """The job to which the run was submitted; None without one, or if nobody was asked."""
    ask: AskJob = unasked

    @classmethod
    def named(cls, word: str, folder: str, ask: AskJob = unasked) -> SeenRun:
        """Returns a run by its name. `ask` asks the scheduler for the state of its job. Raises `NoRun`."""
        run = find(word, Path(folder))
        return cls.of(run, plan_of_run(run), ask)

    @classmethod
    def of(cls, run: RunDir, plan: Plan, ask: AskJob = unasked) -> SeenRun:
        """Raises `NoRun`."""
        job = ask(run)  # before the state, which the head writes before its job ends
        state, launcher = read_state(plan, run)
        return cls(run, plan, state, launcher, condition_of(run, state, launcher, job), job, ask)

    def again(self) -> SeenRun:
        """Returns the run as it is now. Raises `NoRun`."""
        return SeenRun.of(self.run, self.plan, self.ask)

    @property
    def name(self) -> str:
        return name_of(self.run)

    @property
    def is_live(self) -> bool:
        return self.condition in LIVE

    @property
    def seconds(self) -> float:
        """The duration of the run so far."""
        return self.state.seconds(time.time() if self.is_live else 0.0)

    @property
    def code(self) -> int:
        """The exit code of a run that is over."""
        return LOST_CODE if self.state.code is None else self.state.code

    @property
    def where(self) -> str:
        """A line about a job that waits or was lost, or about a launcher that this machine cannot see; empty
        otherwise."""
        if self.job and self.job.cause and self.condition in ("failed", "interrupted"):
            return f"{self.job.name}: {self.job.cause}"
        if self.job and self.condition in ("queued", "lost"):
            return f"{self.job.name}: {self.job.text or 'its scheduler does not know it any more'}"
        if self.job or self.launcher is None or self.launcher.is_here or not self.is_live:
            return ""
        return f"its launcher, process {self.launcher.pid} on {self.launcher.host}, cannot be seen from here"

    @property
    def checkpoints(self) -> list[int]:
        """The steps of the published checkpoints that exist."""
        newest = self.run.saved()
        return sorted(step for step in steps_of(self.run) if step <= newest)

    def to_data(self) -> dict[str, Any]:
        """Returns what is known about the run as plain data."""
        state, launcher, use = self.state, self.launcher, self.state.time_use
        return {
            "run": str(self.run.path),
            "name": self.name,
            "state": self.condition,
            "code": state.code,
            "reason": state.reason,
            "notice": state.notice,
            "step": state.step,
            "steps": state.steps,
            "source": state.source,
            "attempt": state.attempt,
            "began": state.times.began,
            "launched": state.times.launched,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(state.steps_per_second, 6),
            "launcher": None
            if launcher is None
            else {"host": launcher.host, "pid": launcher.pid, "alive": launcher.is_alive()},
            "job": None
            if self.job is None
            else {"name": self.job.name, "phase": self.job.phase, "text": self.job.text},
            "checkpoints": self.checkpoints,
            "stalled": state.stalled,
            "stall": state.stall if state.stalled else [],
            "restarts": state.restarts,
            "warnings": state.warnings,
            "groups": {name: _group_data(group) for name, group in state.groups.items()},
            "metrics": {
                name: {"first": history.first, "last": history.last}
                for name, history in state.histories.items()
            },
            "routes": state.routes,
            "time": use.to_data() if use else None,
        }


def _group_data(group: GroupState) -> dict[str, Any]:
    return {
        "workers": group.workers,
        "state": group.state,
        "phase": group.phase,
        "stages": {stage: round(mean, 9) for stage, mean in means(group)},
    }


def plan_of_run(run: RunDir) -> Plan:
    """Raises `NoRun` if the plan cannot be read."""
    try:
        return Plan.read(run.plan)
    except OSError as error:
        raise NoRun(f"{run.plan} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except DAMAGED as error:
        text = str(error) if "format" in str(error) else "it is damaged"
        raise NoRun(f"{run.plan} cannot be read: {text}") from None


def condition_of(
    run: RunDir, state: RunState, launcher: Launcher | None, job: JobState | None = None
) -> Condition:
    """Returns the state of a run. A run without an end is lost if its launcher, or its job, is gone. One
    whose launcher runs on another host has the state that it has written last. A job that has begun without
    an event of its head since then still counts as queued."""
    if job and job.phase != "ended" and (job.phase == "queued" or state.times.newest < job.submitted):
        return "queued"
    if state.code is not None:
        return state.condition
    if job:
        return "lost" if job.phase == "ended" else state.condition
    if launcher is None and Submission.of(run):
        return "queued"  # nobody was asked
    is_gone = launcher is None or launcher.is_alive() is False
    return "lost" if is_gone else state.condition
