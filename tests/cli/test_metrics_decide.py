"""Runs that end because of a metric, with real components: what is saved and called then, and what a user
reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import rows, run_of, steps

PARTS = """
import torch
from meshctl import Batch, Component, endpoint
from parts import Maker

class Sized(Maker):
    def __len__(self) -> int:
        return 4_000_000

class Judge(Component):
    def __init__(self, losses: list) -> None:
        self.losses = losses

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        if self.rank == 1:
            self.log({"own": 1.0})
        return {"loss": float(self.losses[min(self.step, len(self.losses)) - 1])}

    @endpoint
    def export(self) -> None:
        (self.run_dir / "exported").touch()

    def state_dict(self):
        return {"x": torch.zeros(1)}

    def load_state_dict(self, state):
        pass

class Logging(Judge):
    def setup(self) -> None:
        self.log({"parameters": 7})

    def close(self) -> None:
        self.log({"last": self.step})

class Crashing(Judge):
    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        self.log({"norm": float("nan") if self.step == 2 else 1.0})
        if self.step == 2 and self.rank == 0:
            raise ValueError("boom")
        return {"loss": 1.0}
"""

RECIPE = """
name: small
groups:
  one: {ranks: 1, device_type: cpu}
  two: {ranks: 2, device_type: cpu}
components:
  maker: {_target_: deciding.Sized, group: one}
  judge: {_target_: deciding.Judge, group: two, parallel: {tp_size: 2}, args: {losses: []}}
pipeline:
  batch: {call: maker.next, samples: 4}
  eval: {call: judge.loss, in: batch}
  export: {call: judge.export, in: [], when: end}
run: {dir: runs, checkpoint: {}}
"""


@pytest.fixture
def deciding(folder: Path) -> Path:
    (folder / "deciding.py").write_text(PARTS)
    (folder / "deciding.yaml").write_text(RECIPE)
    return folder


def test_nan_leaves_no_checkpoint_and_no_export(deciding: Path) -> None:
    """The source may end unannounced."""
    words = ["components.maker._target_=parts.Maker", "components.judge.args.losses=['3','nan']"]
    done = meshctl(deciding, "launch", "deciding.yaml", *words)
    assert done.returncode == 5, done.stderr
    line = "metric `eval.loss` is NaN in step 2 (stage eval, two:0); there is no checkpoint"
    assert done.stderr.splitlines()[-1] == f"error: {line}"
    assert f"stopping: {line}" in done.stdout.splitlines()
    run = run_of(deciding)
    assert not (run / "exported").exists() and not (run / "checkpoints").exists()
    assert [row["eval.loss"] for row in rows(run)][:2] == [3.0, None]


def test_a_failure_after_a_nan_of_the_same_step_names_both(deciding: Path) -> None:
    done = meshctl(deciding, "launch", "deciding.yaml", "components.judge._target_=deciding.Crashing")
    assert done.returncode == 5, done.stderr
    failure = "two:0 failed in stage eval, step 2: ValueError: boom; there is no checkpoint"
    nan = "metric `eval.norm` is NaN in step 2 (stage eval, two:0)"
    assert f"error: {nan}; then {failure}" in done.stderr.splitlines()
    assert 'raise ValueError("boom")' in done.stderr
    assert steps(run_of(deciding)) in ([1], [])  # two:1 may not have ended step 1


def test_a_metric_that_no_longer_improves_ends_the_run_in_order(deciding: Path) -> None:
    words = [
        *("components.judge.args.losses=['3','1','2']", "run.stop={on: eval.loss, patience: 2}"),
        "run.checkpoint={every: 1, keep: 1, best: {on: eval.loss}}",
        "components.judge._target_=deciding.Logging",
    ]
    done = meshctl(deciding, "launch", "deciding.yaml", *words)
    assert done.returncode == 0, done.stderr
    reason = "`eval.loss` has not improved in 2 values, up to step 4: its best value is 1, in step 2"
    assert f"stopping: {reason}" in done.stdout.splitlines()
    own = "two:1 has logged `eval.own` in step 1, but two:0, whose values enter the metrics, has not"
    assert f"  warning: {own}" in done.stdout
    run = run_of(deciding)
    summary = done.stdout.splitlines()
    assert any(line.startswith("small: done after") and line.endswith(f": {reason}") for line in summary)
    assert f"  best checkpoint: {run}/checkpoints/step-2 (eval.loss 1)" in summary
    assert (run / "exported").exists()
    found = rows(run)
    assert found[0] == {"step": 0, "judge.setup.parameters": 7.0}
    assert [row["step"] for row in found if "judge.close.last" in row] == [len(found) - 1]
    last = (run / "checkpoints" / "latest").resolve().name
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"latest", "best.json", "step-2", last}
    again = meshctl(deciding, "launch", str(run))
    assert again.returncode == 0
    assert again.stdout == f"{run}: the run is complete: {reason} (`run.stop=false` goes on)\n"
