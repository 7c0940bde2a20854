"""Checkpoints that are written while the run goes on (`run.checkpoint.async`), by real
processes whose disk waits where a test wants it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import test_exactly_once
from processes import rows_of, wait, written
from test_exactly_once import Running

from meshctl.run.checkpoints import Manifest
from meshctl.run.events import Follower

PARTS = (
    test_exactly_once.PARTS
    + """

import os
from pathlib import Path


class SlowLearner(Learner):
    def setup(self):
        super().setup()
        os.fsync = disk_that_waits(os.fsync)


def disk_that_waits(fsync):
    def waiting(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        while any(f"checkpoints/{gate.name}/" in path for gate in Path("gates").glob("step-*")):
            time.sleep(0.01)
        fsync(descriptor)

    return waiting
"""
)
STEPS = [
    "recipe.yaml",
    "components.learner._target_=parts.SlowLearner",
    "run.steps=6",
    "run.checkpoint.every=2",
]
ASYNC = "run.checkpoint.async=true"
FOREVER = "run.steps=100000000"


@contextmanager
def waiting_disk(folder: Path, step: int) -> Iterator[None]:
    """Context manager in which no file of the checkpoint of a step in a run directory gets to the disk."""
    gate = folder / "gates" / f"step-{step}"
    gate.parent.mkdir(exist_ok=True)
    gate.touch()
    try:
        yield
    finally:
        gate.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, test_exactly_once.RECIPE, PARTS)


@pytest.fixture
def whole(folder: Path) -> Running:
    """An uninterrupted run whose checkpoints are written while it waits."""
    launch = Running(folder, "whole").begin(*STEPS, "name=whole")
    launch.done()
    return launch


@pytest.mark.slow
def test_a_kill_in_flight_leaves_the_checkpoint_before(folder: Path, whole: Running) -> None:
    launch = Running(folder, "killed")
    with waiting_disk(folder, 4):
        launch.begin(*STEPS, "name=killed", ASYNC)
        launch.wait_for("saved", 4, count=2)
        launch.wait_for("checkpoint", 2, count=1)
        wait(lambda: (launch.run.checkpoint(4) / "learner").is_dir(), "a copy")
        os.kill(launch.pid, signal.SIGKILL)
        launch.end()
        wait(lambda: not launch.workers, "the end of all workers")
    assert launch.run.saved() == 2
    assert {event.group for event in launch.events("saved", 4)} == {"read"}  # whose disk does not wait
    launch.begin(str(launch.run.path)).done()
    assert rows_of(launch.run) == rows_of(whole.run) and launch.run.saved() == 6
    manifest = Manifest.read(launch.run.checkpoint(6))
    assert manifest.damage(launch.run.checkpoint(6)) == "" and len(manifest.files) == 10


@pytest.mark.nightly
def test_the_next_checkpoint_and_the_end_wait_for_the_one_in_flight(folder: Path, whole: Running) -> None:
    launch = Running(folder, "waits")
    with waiting_disk(folder, 2):
        launch.begin(*STEPS, "name=waits", ASYNC, "run.steps=5")
        launch.wait_for("step", 3)
        assert {event.group for event in launch.events("saving", 4)} <= {"read"}
    launch.done()
    assert rows_of(launch.run) == rows_of(whole.run)[:5]
    for rank in (0, 1):
        order = [
            (event.name, event.step)
            for event in Follower(launch.run.events).in_order()
            if event.name in ("saving", "saved", "done") and (event.group, event.rank) == ("learn", rank)
        ]
        writes = [(name, step) for step in (2, 4, 5) for name in ("saving", "saved")]
        assert order == [*writes, ("done", 5)]


@pytest.mark.nightly
def test_a_requested_checkpoint_that_is_due_as_well_is_one(folder: Path) -> None:
    launch = Running(folder, "twice")
    with waiting_disk(folder, 2):
        launch.begin(*STEPS, "name=twice", ASYNC, FOREVER)
        launch.wait_for("step", 3)
        os.kill(launch.pid, signal.SIGUSR1)
    launch.wait_for("checkpoint", 6, count=1)
    os.kill(launch.pid, signal.SIGTERM)
    assert launch.end() == 143
    steps = [event.step for event in launch.events("checkpoint")]
    assert steps == sorted(set(steps)) and steps[0] == 2
    assert len(launch.events("saved", 4)) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("opens", [True, False])
def test_sigterm_waits_within_the_grace(opens: bool, folder: Path) -> None:
    launch = Running(folder, "term")
    with waiting_disk(folder, 4):
        grace = "run.grace=40" if opens else "run.grace=1"
        launch.begin(*STEPS, "name=term", ASYNC, FOREVER, grace)
        launch.wait_for("saving", 4)
        os.kill(launch.pid, signal.SIGTERM)
        launch.wait_for("stopping", count=1)
        if not opens:
            launch.end()
    assert launch.end() == 143
    last = max(event.step or 0 for event in launch.events("step"))
    assert launch.run.saved() == (last if opens else 2) and launch.workers == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 6))
def test_processes_may_die_at_any_moment(folder: Path, seed: int) -> None:
    recipe = test_exactly_once.RECIPE.replace("keep: 2", "keep: 2, async: true")
    written(folder, recipe, test_exactly_once.PARTS)
    kills = test_exactly_once.generated(seed, 5, 60)
    assert test_exactly_once.check(folder, 60, kills, seed) >= 4
