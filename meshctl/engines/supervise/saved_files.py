"""Collects what workers have saved, and writes the manifest of a checkpoint once all have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshctl.engines.checks.resume import code_of
from meshctl.plan.model import Plan
from meshctl.plan.resume_facts import facts_of
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.manifest import Manifest


class SavedFiles:
    """The files of the checkpoints that are not published yet, from the `saved` events of workers."""

    def __init__(self, plan: Plan, run: RunDir, path: Sequence[str]) -> None:
        """`path` are the folders of the user's code."""
        self._run = run
        self._facts = {**facts_of(plan), "code": code_of(plan, path)}
        self._workers = sum(group.workers for group in plan.groups if group.program is None)
        self._saved: dict[int, list[dict[str, Any]]] = {}
        """Step -> the files of each worker that has saved it."""

    def add(self, event: Event) -> None:
        if event.step is not None:
            self._saved.setdefault(event.step, []).append(event.value.get("files", {}))

    @property
    def complete(self) -> list[int]:
        """The steps that all workers have saved, in rising order."""
        return sorted(step for step, saved in self._saved.items() if len(saved) == self._workers)

    def write_manifest(self, step: int) -> None:
        """Writes the manifest of a step that all workers have saved. It is as private as `plan.json`, which
        holds the same arguments. Raises `OSError`."""
        saved = self._saved.pop(step)
        files = {name: facts for part in saved for name, facts in part.items()}
        is_private = not self._run.plan.stat().st_mode & 0o077
        Manifest(step, files, self._facts).write(self._run.checkpoint(step), is_private)
