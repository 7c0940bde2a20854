"""A run that has succeeded and whose results were deleted meanwhile is a failure."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import plan_of

from meshctl.engines.engine import Job
from meshctl.engines.supervise.attempt import begin
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.supervisor import Supervisor
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from tests.engines.fake import FakeEngine
from tests.engines.test_fake import Recording, steps


def _emptied(run: RunDir) -> None:
    for path in run.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("moment", "delete", "reason"),
    [
        ("exit", lambda run: shutil.rmtree(run.path), "the run directory {} was deleted"),
        ("end", lambda run: run.path.rename(run.path.with_name("moved")), "the run directory {} was deleted"),
        ("exit", _emptied, "the run directory {} was emptied: it has no `plan.json` and `start.json`"),
        ("end", lambda run: shutil.rmtree(run.checkpoint(3)), "{}/checkpoints/step-3 was deleted"),
    ],
)  # fmt: skip
def test_results_that_are_deleted_at_the_end_are_a_failure(
    moment: str, delete: Callable[[RunDir], object], reason: str, tmp_path: Path
) -> None:
    """They are deleted when the workers exit, or when the observers have seen the end."""
    plan = plan_of(tmp_path, ("one", 1))
    attempt = begin(plan, "name: test\n", (str(tmp_path),), None)

    class Deleting(Recording):
        def on_event(self, event: Event) -> None:
            if event.name == "checkpoint" and event.step == 3 and moment == "exit":
                delete(attempt.run)

        def on_end(self, code: int, reason: str) -> None:
            if moment == "end":
                delete(attempt.run)

    job = Job(plan, attempt.run, lambda environ: 70)
    outcome = Supervisor(FakeEngine(steps), Signals()).run(job, attempt, lambda: [Deleting()])
    assert (outcome.code, outcome.reason) == (5, reason.format(attempt.run.path))
