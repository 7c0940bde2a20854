"""One attempt at a run. It creates or continues the run directory, and locks it against other launchers.

The next attempt continues from the newest whole checkpoint in the same directory. Its events are appended to
the earlier ones. Rows of `metrics.jsonl` after the checkpoint move to `metrics.lost.jsonl`, so that the
file has one row per step.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.checks.fork import in_fork
from meshctl.engines.supervise.cause import ATTEMPT
from meshctl.plan.model import Plan
from meshctl.run import clock
from meshctl.run.checkpoints import WholeCheckpoint, clear_later, newest_whole_checkpoint
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.events import Follower, events_of
from meshctl.run.media import forget_media
from meshctl.run.metrics import Fold, PastAttempts, continue_rows
from meshctl.text.redaction import holds_literal, spans

HELD_S, HELD_POLL_S = 1.0, 0.05
"""Time that a launch waits for the lock, and between two attempts to take it. The processes of a killed
launcher hold the lock, too, until they have ended."""
ANSWER_S = 5.0
"""Time that a launch waits for the disk of the run directory."""


class RunHeld(Exception):
    """Another launcher runs the run, or its disk does not answer; the message names its directory."""


@dataclass(frozen=True)
class Attempt:
    plan: Plan
    run: RunDir
    start: Start
    lock: int
    """A file descriptor that holds the lock as long as any process has it open."""
    follower: Follower
    """Reads the events of this attempt. It has skipped those of earlier attempts."""
    fold: Fold
    """Folds the events of this attempt into rows of metrics."""
    published: frozenset[int] = frozenset()
    """The steps of the checkpoints that earlier attempts have published."""
    warning: str = ""
    """Warning about newer checkpoints that are damaged, or that are only on the disk of this node."""

    @property
    def step(self) -> int | None:
        """The last step before the attempt; None if it starts from the beginning."""
        return step_of(self.start)

    @property
    def has_ended_step(self) -> bool:
        """True if a step of the attempt has its row."""
        return self.fold.last > (self.step or 0)


def begin(
    plan: Plan,
    composed: str,
    path: Sequence[str],
    resume: RunDir | None,
    whole: WholeCheckpoint | None = None,
) -> Attempt:
    """Begins an attempt: writes its files into a new run directory, or into `resume`. `whole` is the
    checkpoint of `resume` to continue from; None for the newest whole one.

    Raises `RunHeld` if another launcher runs the run, `OSError` if a file cannot be written, and
    `NoWholeCheckpoint` if no checkpoint of `resume` is whole.
    """
    run = resume or RunDir.create(Path(plan.run.dir), plan.name, time.strftime("%Y%m%d-%H%M%S"))
    descriptor = lock(run)
    whole = (whole or newest_whole_checkpoint(run)) if resume else WholeCheckpoint()
    start = following(run, tuple(path), whole) if resume else Start(tuple(path))
    run.forget_parts()
    values: list[object] = [dict(component.args) for component in plan.components]
    values += [dict(group.env) for group in plan.groups]
    values += [list(group.program.argv) for group in plan.groups if group.program]
    private = holds_literal(values) or bool(spans(composed))  # the recipe contains a secret
    write_whole(run.recipe, composed, private)
    write_whole(run.plan, plan.to_json(), private)
    return replace(_begun(plan, run, start, descriptor), warning=whole.warning)


def taken_up(plan: Plan, run: RunDir) -> Attempt:
    """Returns the attempt for a head that another process than `launch` starts: the one that was prepared, or
    the next one if a head has launched that already. Raises `RunHeld`, `NoWholeCheckpoint` and `OSError`."""
    start, descriptor = run.read_start(), lock(run)
    events = events_of(run.journal("launcher")) if run.journal("launcher").exists() else ()
    was_launched = any(one.name == "launched" and one.value.get("attempt") == start.attempt for one in events)
    return (next_attempt if was_launched else _reading)(plan, run, start, descriptor)


def next_attempt(plan: Plan, run: RunDir, old: Start, descriptor: int) -> Attempt:
    """Begins the attempt after the one that has begun with `old`, under the same lock. Raises
    `NoWholeCheckpoint` if there are checkpoints and none is whole, and `OSError` if a file cannot be
    written."""
    whole = newest_whole_checkpoint(run)
    found = following(run, old.path, whole)
    start = replace(found, only=old.only, replay=old.replay, after=old.after, engine=old.engine)
    if plan.digest != Plan.read(run.plan).digest:
        start = replace(start, plan=run.smaller_plan(plan.digest).name)
        write_whole(run.plan_of(start), plan.to_json(), private=True)
    begun = _begun(plan, run, start, descriptor)
    run.forget_recorded(begun.step or 0)
    forget_media(run, begun.step or 0)
    return replace(begun, warning=whole.warning)


def _begun(plan: Plan, run: RunDir, start: Start, descriptor: int) -> Attempt:
    """Marks the beginning in all logs, and writes the start."""
    for log in (run.path / "logs").rglob("*.log"):
        if log.is_file() and not log.is_symlink():
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{ATTEMPT}{start.attempt} ====\n")
    run.write_start(start)
    return _reading(plan, run, start, descriptor)


def _reading(plan: Plan, run: RunDir, start: Start, descriptor: int) -> Attempt:
    follower = Follower(run.events)
    follower.skip()
    step = step_of(start)
    attempts, published = PastAttempts(), set[int]()
    for event in events_of(run.journal("launcher")):
        attempts.add(event)
        if event.name == "checkpoint" and event.step is not None:
            published.add(event.step)
    published = {one for one in published if one <= (step or 0)}  # later ones are damaged
    workers = {group.name: group.workers for group in plan.groups if group.program is None}
    elapsed = continue_rows(run, step, attempts)
    fold = Fold(workers, since=clock.now(), after=step, elapsed=elapsed)
    return Attempt(plan, run, start, descriptor, follower, fold, frozenset(published))


def step_of(start: Start) -> int | None:
    """Returns the step of the checkpoint from which an attempt continues; None if it starts from the
    beginning."""
    return int(start.resume.rpartition("step-")[2]) if start.resume else None


def lock(run: RunDir) -> int:
    """Takes the lock of a run and returns its descriptor. The kernel releases the lock when the last process
    that inherited the descriptor ends, even by SIGKILL. Raises `RunHeld`."""
    descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunHeld(f"the run in {run.path} is still running") from error
    return descriptor


def check_unheld(run: RunDir) -> None:
    """Raises `RunHeld` if another launcher runs the run, before anything else is read. Waits a moment for the
    processes of a launcher that was just killed. `run` may be no run directory."""
    if not os.path.isfile(run.lock):
        return
    try:
        held = in_fork(lambda: _held(run), HELD_S + ANSWER_S)
    except TimeoutError:
        held = f"the disk of {run.path} does not answer: look at it (df, mount, dmesg)"
    if held:
        raise RunHeld(held)


def _held(run: RunDir) -> str:
    """Returns why the lock cannot be taken; empty if it can."""
    end = time.monotonic() + HELD_S
    while True:
        try:
            os.close(lock(run))
        except RunHeld as error:
            if time.monotonic() <= end:
                time.sleep(HELD_POLL_S)
                continue
            return str(error)
        except OSError:  # what cannot be read is reported later
            pass
        return ""


def following(run: RunDir, path: tuple[str, ...], whole: WholeCheckpoint) -> Start:
    """Returns the start of the next attempt, which resumes the checkpoint `whole`. Makes room for the later
    ones."""
    clear_later(run, whole.step)
    return Start(path, run.read_start().attempt + 1, str(whole.path or ""))
