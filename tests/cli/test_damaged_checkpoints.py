"""A run whose newest checkpoint is damaged continues from the one before; where none is whole, nothing
starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import run_of, steps, wait_for_processes

pytestmark = pytest.mark.slow


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "run.steps=5")
    assert done.returncode == 0, done.stderr
    run = run_of(folder)
    checkpoints = run / "checkpoints"
    spoilt = checkpoints / "step-5" / "one.json"
    spoilt.write_text(spoilt.read_text().replace("20", "21"))
    done = meshctl(folder, "launch", str(run), "run.steps=6")
    assert done.returncode == 0, done.stderr
    reason = f"{spoilt} has other bytes than were written"
    warning = f"the checkpoint of step 5 is damaged, so the run continues from that of step 4: {reason}"
    assert warning in done.stdout
    assert steps(run) == [1, 2, 3, 4, 5, 6]
    assert (checkpoints / "damaged-step-5").is_dir()
    refused(folder, run)


def refused(folder: Path, run: Path) -> None:
    """Damages every checkpoint, and asserts that no process is started."""
    for path in run.glob("checkpoints/step-*/trainer/__1_0.distcp"):
        path.unlink()
    wait_for_processes(folder)
    before = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    done = meshctl(folder, "launch", str(run), "run.steps=7")
    assert done.returncode == 4
    assert str(run / "checkpoints" / "step-6" / "trainer" / "__1_0.distcp") in done.stderr
    assert {path: path.stat().st_size for path in run.rglob("*") if path.is_file()} == before
