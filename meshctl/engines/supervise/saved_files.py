"""Collects the saved files of all workers, and writes the manifest of a checkpoint once it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from meshctl.engines.checks.resume import code_of
from meshctl.plan.model import Plan
from meshctl.plan.resume_facts import facts_of
from meshctl.run.checkpoints.saved import Manifest
from meshctl.run.directory import RunDir
from meshctl.run.events import Event


class SavedFiles:
    """The files of the checkpoints that are not published yet, from the `saved` events of workers."""

    def __init__(self, plan: Plan, run: RunDir, path: Sequence[str]) -> None:
        """`path` are the folders of the user's code."""
        self._run = run
        self._facts = {**facts_of(plan), "code": code_of(plan, path)}
        self._workers = sum(group.workers for group in plan.groups if group.program is None)
        self._saved: dict[int, dict[tuple[str, int | None], dict[str, Any]]] = {}
        """Step -> the files of each worker that has saved it."""
        self._failures: dict[int, str] = {}
        """Step -> the reason why it cannot be written."""
        self._newest = 0
        """The newest step that a worker has saved, or could not save."""

    def add(self, event: Event) -> None:
        """Notes a `saved` or `unsaved` event."""
        if event.step is not None:
            saved = self._saved.setdefault(event.step, {})
            saved[event.group, event.rank] = event.value.get("files", {})  # the last one, if it restarted
            self._newest = max(self._newest, event.step)
            if event.name == "unsaved":
                self._failures.setdefault(event.step, str(event.value.get("error", "")))

    @property
    def reported(self) -> list[int]:
        """The steps for which all workers have saved their part, or reported that they cannot, in rising
        order."""
        return sorted(step for step, saved in self._saved.items() if len(saved) == self._workers)

    def failure(self, step: int) -> str:
        """The reason why the checkpoint of a step could not be written; empty if it was written."""
        return self._failures.get(step, "")

    def discard(self, step: int) -> None:
        """Deletes the files of an incomplete checkpoint."""
        del self._saved[step]
        shutil.rmtree(self._run.checkpoint(step), ignore_errors=True)

    @property
    def lost_end(self) -> str:
        """The reason why the last checkpoint could not be written; empty if it was written, or if none was
        due."""
        if self._newest not in self._failures:
            return ""
        reason = self._failures[self._newest]
        return f"the last checkpoint, of step {self._newest}, could not be written: {reason}"

    def publish(self, step: int) -> bool:
        """Writes the manifest of a step that all workers have saved, and makes the checkpoint the latest.
        Returns whether both can be written."""
        try:
            self._write_manifest(step)
            self._run.publish_checkpoint(step)
        except OSError as error:
            self._failures[step] = f"{error.filename}: {error.strerror}"
            return False
        del self._saved[step]
        return True

    def _write_manifest(self, step: int) -> None:
        """Writes the manifest, as private as `plan.json`, which holds the same arguments."""
        saved = self._saved[step]
        files = {name: facts for part in saved.values() for name, facts in part.items()}
        is_private = not self._run.plan.stat().st_mode & 0o077
        Manifest(step, files, self._facts).write(self._run.checkpoint(step), is_private)
