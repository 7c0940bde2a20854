"""`meshctl test`: a recipe gives the numbers of its kept run again, and the first other one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.cli.test import differences
from tests.cli.commands import call

PARTS = """
import torch
from meshctl import Batch, Component, endpoint


class Numbers(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"n": torch.tensor(list(samples), dtype=torch.float32)})


class Learner(Component):
    def __init__(self, scale: float = 1.0):
        self.scale = scale

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        return {"loss": self.scale * float(batch["n"].mean()) / 3, "rows": float(len(batch)), "seconds": 0.1}
"""
RECIPE = """
groups: {one: {ranks: 2, device_type: cuda}}
components:
  numbers: {_target_: parts.Numbers, group: one}
  learner: {_target_: parts.Learner, group: one}
pipeline:
  batch: {call: numbers.next, samples: 8}
  metrics: {call: learner.update, in: batch}
run: {dir: runs}
"""


@pytest.mark.slow
def test_a_kept_run_is_compared(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "job.yaml").write_text(RECIPE)
    kept = tmp_path / "job.expected.jsonl"
    done = call(tmp_path, "test", "job.yaml")
    assert done.returncode == 2 and "there is no job.expected.jsonl: --update writes it" in done.stderr
    done = call(tmp_path, "test", "job.yaml", "run.steps=3", "--update")
    assert done.returncode == 0 and done.stdout == "wrote job.expected.jsonl: 3 steps\n"
    head, *rows = map(json.loads, kept.read_text().splitlines())
    assert head["overrides"] == ["run.steps=3"] and {"torch", "cpu", "threads"} <= head.keys()
    assert rows[0].keys() == {"step", "metrics.loss", "metrics.rows"}
    done = call(tmp_path, "test", "job.yaml")
    assert (done.returncode, done.stdout) == (0, "job.yaml: 3 steps, 6 numbers equal digit for digit\n")
    done = call(tmp_path, "test", "job.yaml", "+components.learner.args.scale=1.00001")
    assert done.returncode == 1 and "job.yaml: step 1, stage metrics, `loss`: " in done.stdout
    kept.write_text(kept.read_text().replace(head["torch"], "1.0"))
    done = call(tmp_path, "test", "job.yaml", "+components.learner.args.scale=1.00001")
    assert done.returncode == 0 and "torch 1.0, here " in done.stdout and "equal within 0.001" in done.stdout
    infinite = "+components.learner.args.scale=1e308"
    done = call(tmp_path, "test", "job.yaml", infinite, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 5 and "its run is kept in" in done.stderr
    assert not list(tmp_path.glob("runs"))


@pytest.mark.parametrize(
    ("before", "now", "tolerance", "expected"),
    [
        ([{"step": 1, "a.loss": 1.5}], [{"step": 1, "a.loss": 1.5}], 0.0, []),
        ([{"step": 1, "a.loss": 1.5}], [{"step": 1, "a.loss": 1.5001}], 1e-3, []),
        ([{"step": 1, "a.loss": 1.5}], [{"step": 1, "a.loss": 1.6}], 1e-3, ["step 1, stage a, `loss`: 1.5 before, 1.6 now"]),
        ([{"step": 1, "a.rows": 8.0}], [{"step": 1, "a.rows": 8.001}], 1e-3, ["step 1, stage a, `rows`: 8.0 before, 8.001 now"]),
        ([{"step": 1, "a.loss": 1.5}], [{"step": 1, "b.loss": 1.5}], 0.0, ["step 1, stage a, `loss`: 1.5 before, nothing now", "step 1, stage b, `loss`: nothing before, 1.5 now"]),
        ([{"step": 1, "a.x": None}], [{"step": 1, "a.x": None}], 1e-3, []),
        ([{"step": 1}, {"step": 2}], [{"step": 1}], 0.0, ["2 steps before, 1 now"]),
    ],
)  # fmt: skip
def test_the_differences_of_two_runs(
    before: list[dict[str, object]], now: list[dict[str, object]], tolerance: float, expected: list[str]
) -> None:
    assert [*differences(before, now, tolerance)] == expected
