"""A checkpoint that cannot be written is a warning; the last one ends the run with 5, and the run can be continued."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import run_of, steps

pytestmark = pytest.mark.slow

BLOCKED = """
import re, time
from pathlib import Path
from meshctl import Batch, endpoint
from parts import Trainer

class Blocked(Trainer):
    \"\"\"In the steps `blocked` a file is in the place of the folder of checkpoints.\"\"\"

    def __init__(self, blocked=(), mood: str = "") -> None:
        super().__init__(mood)
        self.blocked = blocked

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        folder = Path(self.run_dir) / "checkpoints"
        kept = folder.with_name("kept")
        if self.rank == 0 and self.step in self.blocked and folder.is_dir():
            events = Path(self.run_dir) / "events" / "launcher.jsonl"
            while events.read_text().count('"checkpoint"') < self.step // 2 - 1:
                time.sleep(0.01)  # the launcher may not have published the one before
            folder.rename(kept)
            folder.write_text("")
        elif self.rank == 0 and self.step not in self.blocked and folder.is_file():
            folder.unlink()
            kept.rename(folder)
        return super().update(batch)
"""
ONE_GROUP = ("~groups.one", "components.maker.group=two", "components.trainer._target_=blocked.Blocked")


def test_a_checkpoint_that_cannot_be_written_is_a_warning(folder: Path) -> None:
    (folder / "blocked.py").write_text(BLOCKED)
    words = (*ONE_GROUP, "components.trainer.args={blocked:[4,5,6,7,8,9]}", "run.steps=12")
    done = meshctl(folder, "launch", "recipe.yaml", *words)
    assert done.returncode == 0, done.stderr
    checkpoints = run_of(folder) / "checkpoints"
    failed = [one for one in done.stdout.splitlines() if re.match("warning: .* could not be written", one)]
    assert len(failed) == 1, "\n".join(failed)
    line = failed[0]
    assert f"warning: the checkpoint of step 4 could not be written: {checkpoints}/step-4" in line
    assert "Not a directory" in line
    lost = "3 before it, from step 4 on, are missing"
    assert f"warning: the checkpoint of step 10 is written; {lost}" in done.stdout
    assert (checkpoints / "latest").readlink() == Path("step-12")
    assert steps(run_of(folder)) == list(range(1, 13))


def test_a_run_whose_last_checkpoint_cannot_be_written_has_failed(folder: Path) -> None:
    (folder / "blocked.py").write_text(BLOCKED)
    words = (*ONE_GROUP, "components.trainer.args={blocked:[6]}", "run.steps=6")
    done = meshctl(folder, "launch", "recipe.yaml", *words)
    run = run_of(folder)
    assert done.returncode == 5
    error = f"error: the last checkpoint, of step 6, could not be written: {run / 'checkpoints' / 'step-6'}"
    assert done.stderr.startswith(error) and "Not a directory" in done.stderr
    (run / "checkpoints").unlink()
    (run / "kept").rename(run / "checkpoints")
    words = ("components.trainer.args.blocked=[]", "run.accept=args", "run.steps=7")
    again = meshctl(folder, "launch", str(run), *words)
    assert again.returncode == 0, again.stderr
    assert steps(run) == [1, 2, 3, 4, 5, 6, 7]
