"""Publishes the checkpoints of an attempt: once all workers have saved a step and its metrics are judged, it
becomes `latest`, and older checkpoints are deleted.

    checkpoints = Checkpoints(attempt, judge, journal)
    checkpoints.add(event)                  # `saved` and `unsaved` events of workers
    checkpoints.publish(is_right)           # the saved steps that are right
    checkpoints.is_due(now, requests)       # whether to ask for a checkpoint between those of `every`
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection
from typing import Any

from meshctl.engines.checks.resume import code_of
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.judge import Judge
from meshctl.plan.resume_differences import facts_of
from meshctl.run.checkpoints import Manifest
from meshctl.run.events import Event, Journal


class Checkpoints:
    def __init__(
        self,
        attempt: Attempt,
        judge: Judge,
        journal: Journal,
        prune: Callable[[int, int, Collection[int]], None],
    ) -> None:
        """`prune` requests nodes to delete old checkpoints in run directories of their own."""
        self._prune = prune
        self._recipe, self._run = attempt.plan.run.checkpoint, attempt.run
        self._judge, self._journal = judge, journal
        self._facts = {**facts_of(attempt.plan), "code": code_of(attempt.plan, attempt.start.path)}
        self._workers = sum(group.workers for group in attempt.plan.groups if group.program is None)
        self._saved: dict[int, dict[tuple[str, int | None], dict[str, Any]]] = {}
        """Step that is not published yet -> the files of each worker that has saved it."""
        self._failures: dict[int, str] = {}
        """Step -> the reason why it cannot be written."""
        self._last_saved = 0
        """The newest step that a worker has saved, or could not save."""
        self._published = set(attempt.published)
        self.newest = attempt.step
        """The step of the newest checkpoint; None without one."""
        self._next = math.inf
        """Time of the next checkpoint, with a time in `run.checkpoint.every`."""
        self._failed: list[int] = []
        """The steps of the newest checkpoints, which were not written. The first one has a warning."""

    def add(self, event: Event) -> None:
        """Notes a `saved` or `unsaved` event of a worker."""
        if event.step is not None:
            saved = self._saved.setdefault(event.step, {})
            saved[event.group, event.rank] = event.value.get("files", {})  # the last one, if it restarted
            self._last_saved = max(self._last_saved, event.step)
            if event.name == "unsaved":
                self._failures.setdefault(event.step, str(event.value.get("error", "")))

    @property
    def lost_end(self) -> str:
        """The reason that the last checkpoint was not written; empty if it was, or if there was none."""
        step = self._last_saved
        if step not in self._failures:
            return ""
        return f"the last checkpoint, of step {step}, could not be written: {self._failures[step]}"

    def is_due(self, now: float, is_requested: bool) -> bool:
        """Returns whether the workers are to save a checkpoint that the number of steps does not ask for:
        SIGUSR1 has requested it, or it is time."""
        if self._recipe is None:
            if is_requested:
                self._warn("SIGUSR1 has no effect: the recipe has no `run.checkpoint`")
            return False
        if self._recipe.seconds:
            is_requested = is_requested or now >= self._next
            later = now + self._recipe.seconds
            self._next = later if is_requested else min(self._next, later)
        return is_requested

    def publish(self, is_right: Callable[[int], bool]) -> None:
        """Publishes the steps that all workers have saved and that are right, and warns of those that could
        not be written. To be called when all events of a poll are read: those of a worker arrive in
        order."""
        for step in sorted(step for step, saved in self._saved.items() if len(saved) == self._workers):
            if step not in self._failures and is_right(step):
                self._publish(step)
            if reason := self._failures.get(step):
                del self._saved[step]
                shutil.rmtree(self._run.checkpoint(step), ignore_errors=True)
                self._failed.append(step)
                if len(self._failed) == 1:
                    self._warn(f"the checkpoint of step {step} could not be written: {reason}")

    def _publish(self, step: int) -> None:
        if self._recipe is None:
            return
        try:
            files = {name: facts for part in self._saved[step].values() for name, facts in part.items()}
            is_private = not self._run.plan.stat().st_mode & 0o077  # as `plan.json`, with the same arguments
            Manifest(step, files, self._facts).write(self._run.checkpoint(step), is_private)
            self._run.publish_checkpoint(step)
        except OSError as error:
            self._failures[step] = f"{error.filename}: {error.strerror}"
            return
        del self._saved[step]
        self.newest = step
        if self._failed and step > self._failed[-1]:
            if len(self._failed) > 1:
                lost = f"{len(self._failed)} before it, from step {self._failed[0]} on, are missing"
                self._warn(f"the checkpoint of step {step} is written; {lost}")
            self._failed = []
        self._published.add(step)
        self._published = {one for one in self._published if self._run.checkpoint(one).is_dir()}
        try:
            exempt = self._write_best()
            self._prune(step, self._recipe.keep, exempt)
            self._run.prune_checkpoints(step, self._recipe.keep, exempt)
        except OSError as error:
            self._warn(f"{error.filename} cannot be written: {error.strerror}")
        self._journal.write("checkpoint", step=step, path=str(self._run.checkpoint(step)))

    def on_row(self, step: int) -> None:
        """Judges a published checkpoint again, whose row has got the metrics of stages that ran at the
        end."""
        if step in self._published:
            self._write_best()

    def _write_best(self) -> set[int]:
        """Writes which of the published checkpoints are the best, and returns their steps."""
        best = self._judge.best(self._published)
        if self._recipe and self._recipe.best:
            self._run.write_best(self._recipe.best.on, self._recipe.best.mode, best)
        return {one.step for one in best}

    def _warn(self, text: str) -> None:
        self._journal.write("warning", text=text)
