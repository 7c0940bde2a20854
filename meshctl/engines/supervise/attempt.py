"""One attempt at a run: its directory made or continued, and held, so that nobody else launches it meanwhile.

A run directory is a recipe that continues. The next attempt goes on from `checkpoints/latest` in the same
directory: its events are appended, and the lines of `metrics.jsonl` after the checkpoint are taken out first,
so that each step stands there once.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshctl.engines.supervise.cause import ATTEMPT
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.events import Follower
from meshctl.run.metrics import Fold, cut
from meshctl.text.redaction import holds_literal, starred


class RunHeld(Exception):
    """The run is still going; the message names its directory."""


@dataclass(frozen=True)
class Attempt:
    run: RunDir
    start: Start
    lock: int
    """A descriptor that holds the lock for as long as anybody has it open."""
    follower: Follower
    fold: Fold


def begin(plan: Plan, composed: str, path: Sequence[str], resume: RunDir | None) -> Attempt:
    """Writes what an attempt needs into a new run directory, or into the one that is continued."""
    run = resume or RunDir.create(Path(plan.run.dir), plan.name, time.strftime("%Y%m%d-%H%M%S"))
    lock = hold(run)
    start = following(run, tuple(path)) if resume else Start(tuple(path))
    mark_logs(run, start.attempt)
    step = int(start.resume.rpartition("step-")[2]) if start.resume else None
    elapsed = cut(run.metrics, step or 0) if resume else 0.0
    private = holds_secret(plan, composed)
    write_whole(run.recipe, composed, private)
    write_whole(run.plan, plan.to_json(), private)
    run.write_start(start)
    follower = Follower(run.events)
    for _ in follower.new():
        pass  # of earlier attempts
    workers = {group.name: group.workers for group in plan.groups if group.program is None}
    return Attempt(run, start, lock, follower, Fold(workers, since=time.time(), after=step, elapsed=elapsed))


def holds_secret(plan: Plan, composed: str) -> bool:
    """Whether the files of a run have to hold a secret, since the recipe writes one out and the run must be
    able to go on."""
    said: list[object] = [dict(component.args) for component in plan.components]
    said += [dict(group.env) for group in plan.groups]
    said += [list(group.program.argv) for group in plan.groups if group.program]
    lines = tuple(composed.splitlines())
    return holds_literal(said) or starred(lines) != lines


def hold(run: RunDir) -> int:
    """Takes the run's lock. It is let go when the last process that has inherited it is gone, even by kill
    -9."""
    lock = os.open(run.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise RunHeld(f"the run in {run.path} is still going") from error
    return lock


def mark_logs(run: RunDir, attempt: int) -> None:
    for log in (run.path / "logs").rglob("*.log"):
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{ATTEMPT}{attempt} ====\n")


def following(run: RunDir, path: tuple[str, ...]) -> Start:
    """The start of the attempt after the last; without a checkpoint it resumes nothing."""
    latest = run.latest.resolve()
    return Start(path, run.read_start().attempt + 1, str(latest) if latest.is_dir() else "")
