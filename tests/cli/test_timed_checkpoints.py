"""`run.checkpoint.every` as a time: checkpoints after steps on which all workers agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, run_of, steps

MORE = """
class Stream(Maker):
    \"\"\"Its data end two steps after the first checkpoint.\"\"\"

    left = 2

    @endpoint
    def next(self, samples: range) -> Batch | None:
        self.left -= (self.run_dir / "checkpoints" / "latest").exists()
        return super().next(samples) if self.left >= 0 else None
"""


@pytest.mark.slow
def test_a_checkpoint_is_written_when_it_is_time(folder: Path) -> None:
    (folder / "parts.py").write_text(PARTS + MORE)
    words = ("~run.steps", "components.maker._target_=parts.Stream", "components.trainer.args.mood=slow")
    done = meshctl(folder, "launch", "recipe.yaml", *words, "run.checkpoint={every: 1s, keep: 100}")
    assert done.returncode == 0, done.stderr
    last = steps(run_of(folder))[-1]
    saved = list(run_of(folder).glob("checkpoints/step-*"))
    assert f"step-{last}" in {path.name for path in saved} and len(saved) > 1
    assert all((path / "checkpoint.manifest.json").is_file() for path in saved)
    assert steps(run_of(folder)) == list(range(1, last + 1))


def test_what_is_no_time_is_refused(folder: Path) -> None:
    done = meshctl(folder, "validate", "recipe.yaml", "run.checkpoint.every=10x")
    assert done.returncode == 1
    assert (
        "`every` must be a number of steps, or a time such as 10m, not the text `10x`"
        in done.stdout + done.stderr
    )
