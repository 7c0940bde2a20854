"""The rule about arguments that count calls of endpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import load

CLASSES = """
from meshctl import Batch, Component, endpoint

class Data(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...
"""
RECIPE = """
groups: {{g: {{ranks: 1, device_type: cpu}}}}
components:
  data: {{_target_: training.Data, group: g}}
  trainer: {{_target_: meshctl.hf.Model, group: g, args: {{model: {{model_type: llama}}, schedule: {{warmup: {warmup}}}}}}}
pipeline:
  batch: {{call: data.next, samples: 4}}
  first: {stage}
  exam: {{call: trainer.evaluate, in: batch}}
run: {{{run}}}
"""
EVERY_STEP = "{call: trainer.update, in: batch}"
OTHER = "{call: trainer.update, in: batch, every: 2}"


@pytest.mark.parametrize(
    ("warmup", "stage", "run", "calls"),
    [
        ("11", EVERY_STEP, "steps: 10", 10),
        ("10", EVERY_STEP, "steps: 10", None),
        ("6", OTHER, "steps: 10", 5),
        ("5", OTHER, "steps: 10", None),
        ("16", f"{EVERY_STEP}\n  second: {OTHER}", "steps: 10", 15),
        ("15", f"{EVERY_STEP}\n  second: {OTHER}", "steps: 10", None),
        ("11", EVERY_STEP, "epochs: 1", None),
        ("11", "{call: trainer.evaluate, in: batch}", "steps: 10", None),
        ("11", "{call: trainer.update, in: batch, when: end}", "steps: 10", None),
        (
            "11",
            "{repeat: {times: 3, over: batch, size: 2}, stages: {a: {call: trainer.update, in: batch}}}",
            "steps: 10",
            None,
        ),
        ('"${oc.env:WARMUP,99}"', EVERY_STEP, "steps: 10", None),
    ],
)
def test_the_run_has_as_many_calls_as_an_argument_counts(
    warmup: str, stage: str, run: str, calls: int | None, tmp_path: Path
) -> None:
    (tmp_path / "training.py").write_text(CLASSES)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(warmup=warmup, stage=stage, run=run))
    loaded = load("recipe.yaml", (), tmp_path, environ={}, detect=lambda: "cpu")
    assert loaded.recipe is not None, loaded.report.diagnostics
    found = [one for one in loaded.report.diagnostics if one.code == "MC581"]
    counted = f"`schedule.warmup` is {warmup}, but the run calls `trainer.update` {calls} times"
    assert [one.message for one in found] == ([counted] if calls else [])
    assert all(one.severity == "warning" and one.primary and one.primary.line == 5 for one in found)


@pytest.mark.parametrize(("steps", "is_reported"), [(9, True), (10, False), (11, False)])
def test_a_schedule_ends_with_the_run_or_later(steps: int, is_reported: bool, tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(CLASSES)
    recipe = RECIPE.format(warmup=f"1, steps: {steps}", stage=EVERY_STEP, run="steps: 10")
    (tmp_path / "recipe.yaml").write_text(recipe)
    found = load("recipe.yaml", (), tmp_path, environ={}, detect=lambda: "cpu").report.diagnostics
    expected = f"`schedule.steps` is {steps}, but the run calls `trainer.update` 10 times"
    assert [one.message for one in found if one.code == "MC474"] == [expected] * is_reported
