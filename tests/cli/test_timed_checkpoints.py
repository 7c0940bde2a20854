"""`run.checkpoint.every` as a time: checkpoints after steps on which all workers agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import run_of, steps


@pytest.mark.slow
def test_a_checkpoint_is_written_when_it_is_time(folder: Path) -> None:
    words = ("run.steps=60", "components.trainer.args.mood=slow", "run.checkpoint={every: 1s, keep: 100}")
    done = meshctl(folder, "launch", "recipe.yaml", *words)
    assert done.returncode == 0, done.stderr
    saved = {path.name for path in run_of(folder).glob("checkpoints/step-*")}
    assert "step-60" in saved and len(saved) > 1
    assert all(
        (path / "checkpoint.manifest.json").is_file() for path in run_of(folder).glob("checkpoints/step-*")
    )
    assert steps(run_of(folder)) == list(range(1, 61))


def test_what_is_no_time_is_refused(folder: Path) -> None:
    done = meshctl(folder, "validate", "recipe.yaml", "run.checkpoint.every=10x")
    assert done.returncode == 1
    assert (
        "`every` must be a number of steps, or a time such as 10m, not the text `10x`"
        in done.stdout + done.stderr
    )
