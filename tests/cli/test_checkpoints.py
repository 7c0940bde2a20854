"""Checkpoints of real runs: when one is written, and what happens where one cannot be written or read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshctl.cli.resizing import Resizing
from meshctl.plan.resizing import CannotResize, Lost
from meshctl.run.directory import RunDir, Start
from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, run_of, steps, wait_for_processes

pytestmark = pytest.mark.slow
STREAM = """
class Stream(Maker):
    \"\"\"Its data end two steps after the first checkpoint.\"\"\"

    left = 2

    @endpoint
    def next(self, samples: range) -> Batch | None:
        self.left -= (self.run_dir / "checkpoints" / "latest").exists()
        return super().next(samples) if self.left >= 0 else None
"""
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


def test_a_checkpoint_is_written_when_it_is_time(folder: Path) -> None:
    (folder / "parts.py").write_text(PARTS + STREAM)
    words = ("~run.steps", "components.maker._target_=parts.Stream", "components.trainer.args.mood=slow")
    done = meshctl(folder, "launch", "recipe.yaml", *words, "run.checkpoint={every: 1s, keep: 100}")
    assert done.returncode == 0, done.stderr
    last = steps(run_of(folder))[-1]
    saved = list(run_of(folder).glob("checkpoints/step-*"))
    assert f"step-{last}" in {path.name for path in saved} and len(saved) > 1
    assert all((path / "checkpoint.manifest.json").is_file() for path in saved)
    assert steps(run_of(folder)) == list(range(1, last + 1))


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
    for path in run.glob("checkpoints/step-*/trainer/__1_0.distcp"):
        path.unlink()
    wait_for_processes(folder)
    before = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    done = meshctl(folder, "launch", str(run), "run.steps=7")
    assert done.returncode == 4, "where none is whole, nothing starts"
    assert str(run / "checkpoints" / "step-6" / "trainer" / "__1_0.distcp") in done.stderr
    assert {path: path.stat().st_size for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "again: .* it has no `recipe.yaml`"), ("groups: {one: {ranks", "again: this `{` is not closed")],
)
def test_a_recipe_that_can_no_longer_be_read_ends_a_run_that_loses_workers(
    tmp_path: Path, text: str | None, why: str
) -> None:
    run = RunDir(tmp_path)
    run.plan.write_text("{}")
    run.start.write_text(Start(()).to_json())
    if text is not None:
        run.recipe.write_text(text)
    with pytest.raises(CannotResize, match=why):
        Resizing(str(run.path), run=run)(Lost(nodes=frozenset({1})))
