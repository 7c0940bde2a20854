"""The rules about calls: methods that return nothing, stages without data, and arguments that count calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.plan.resolve import resolve
from tests.recipe.rules import facts

CLASSES = """
import functools
import torch
from meshctl import Batch, Component, endpoint

class Data(Component):
    @endpoint
    def next(self, samples): return Batch({"x": list(samples)})

    @endpoint
    def ends(self, samples) -> None: ...

class Judge(Component):
    @endpoint
    def annotated(self, batch: Batch) -> None:
        self.kept = batch

    @endpoint
    def sometimes(self, batch):
        if len(batch):
            return batch

    @endpoint
    def update(self, batch): return {"loss": 1.0}
"""
RECIPE = """
groups:
  g: {{ranks: 1, device_type: cpu}}
components:
  data: {{_target_: judging.Data, group: g}}
  judge: {{_target_: judging.Judge, group: g}}
pipeline:
  batch: {{call: {source}, samples: 4}}
  scored: {{call: {call}, in: batch}}
  metrics: {{call: judge.update, in: {taken}, collect: mean}}
run: {{steps: 3}}
"""


def messages(
    folder: Path, source: str = "data.next", call: str = "judge.update", taken: str = "batch"
) -> list[str]:
    """The errors of a recipe with these methods; `taken` is the stage that the last one takes."""
    found = facts.reported(folder, RECIPE.format(source=source, call=call, taken=taken), judging=CLASSES)
    return [f"{one.code} {one.message}" for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("method", "collect", "is_wrong"),
    [
        *[("annotated", collect, True) for collect in ("flatten", "mean")],
        *[("annotated", collect, False) for collect in ("first", "none", "last_pp")],
        ("sometimes", "flatten", False),
    ],
)
def test_a_stage_whose_value_is_taken_returns_one(
    method: str, collect: str, is_wrong: bool, tmp_path: Path
) -> None:
    call = f"judge.{method}, collect: {collect}"
    message = f"MC524 `judge.{method}` returns nothing, but another stage takes the value of stage `scored`"
    assert messages(tmp_path, call=call, taken="scored") == [message] * is_wrong
    assert messages(tmp_path, call=call) == []


def test_a_source_returns_batches(tmp_path: Path) -> None:
    message = "MC524 `data.ends` returns nothing, but a source must return batches"
    assert messages(tmp_path, source="data.ends") == [message]


ENGINES = """
from meshctl import Batch, Component, endpoint

class Engine(Component):
    @endpoint(collect="mean")
    def wake(self): ...

    @endpoint(collect="mean")
    def load(self, batch, strict=False): ...

    @endpoint(collect="mean")
    def sleep(self, level=1): ...

    @endpoint
    def make(self) -> Batch: ...

    @endpoint
    def find(self) -> Batch | None: ...
"""
WITHOUT_DATA = """
groups:
  g: {{ranks: 2, device_type: cpu}}
components:
  engine: {{_target_: engines.Engine, group: g}}
pipeline:
  batch: {{call: engine.load, samples: 4}}
  other: {{{stage}}}
run: {{steps: 3}}
"""


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("call: engine.wake, in: []", []),
        ("call: engine.sleep, in: [], every: 2, after: batch", []),
        ("call: engine.wake, in: [], when: end", []),
        ("call: engine.load, in: []", ["MC516"]),
        ("call: engine.make, in: []", ["MC524"]),
        ("call: engine.find, in: []", ["MC524"]),
        ("call: engine.wake, in: {}", ["MC102"]),
        ("call: engine.wake, in: [], samples: 4", ["MC525"]),
        ("call: engine.wake, in: [], dispatch: all", ["MC525"]),
        ("call: engine.wake, in: [], execute: peer", ["MC525"]),
        ("call: engine.wake, in: [], ends_run: true", ["MC565"]),
        ("call: engine.wake, in: batch", ["MC516"]),
        ("call: engine.wake", ["MC516", "MC540"]),
    ],
)
def test_stages_without_data_are_checked(stage: str, expected: list[str], tmp_path: Path) -> None:
    loaded = facts.loaded(tmp_path, WITHOUT_DATA.format(stage=stage), engines=ENGINES)
    found = [one.code for one in loaded.report.diagnostics if one.code != "MC539"]
    assert sorted(found) == expected, loaded.report.diagnostics
    if not expected:
        plan = resolve(loaded.recipe, {})
        assert plan.stage("other").is_without_data and not plan.stage("other").is_source
        assert [route.name for route in plan.routes] == []


COUNTED = """
groups: {{g: {{ranks: 1, device_type: cpu}}}}
components:
  data: {{_target_: judging.Data, group: g}}
  trainer: {{_target_: meshctl.hf.Model, group: g, args: {{model: {{model_type: llama}}, schedule: {{{schedule}}}}}}}
pipeline:
  batch: {{call: data.next, samples: 4}}
  first: {stage}
  exam: {{call: trainer.evaluate, in: batch}}
run: {{{run}}}
"""
EVERY_STEP = "{call: trainer.update, in: batch}"
OTHER = "{call: trainer.update, in: batch, every: 2}"
BOTH = f"{EVERY_STEP}\n  second: {OTHER}"
BLOCK = "{repeat: {times: 3, over: batch, size: 2}, stages: {a: {call: trainer.update, in: batch}}}"


@pytest.mark.parametrize(
    ("schedule", "stage", "run", "found"),
    [
        ("warmup: 11", EVERY_STEP, "steps: 10", "MC581 `schedule.warmup` is 11, but the run calls `trainer.update` 10 times"),
        ("warmup: 10", EVERY_STEP, "steps: 10", ""),
        ("warmup: 6", OTHER, "steps: 10", "MC581 `schedule.warmup` is 6, but the run calls `trainer.update` 5 times"),
        ("warmup: 5", OTHER, "steps: 10", ""),
        ("warmup: 16", BOTH, "steps: 10", "MC581 `schedule.warmup` is 16, but the run calls `trainer.update` 15 times"),
        ("warmup: 15", BOTH, "steps: 10", ""),
        ("warmup: 11", EVERY_STEP, "epochs: 1", ""),
        ("warmup: 11", "{call: trainer.evaluate, in: batch}", "steps: 10", ""),
        ("warmup: 11", "{call: trainer.update, in: batch, when: end}", "steps: 10", ""),
        ("warmup: 11", BLOCK, "steps: 10", ""),
        ('warmup: "${oc.env:WARMUP,99}"', EVERY_STEP, "steps: 10", ""),
        ("warmup: 1, steps: 9", EVERY_STEP, "steps: 10", "MC474 `schedule.steps` is 9, but the run calls `trainer.update` 10 times"),
        ("warmup: 1, steps: 10", EVERY_STEP, "steps: 10", ""),
    ],
)  # fmt: skip
def test_the_run_has_as_many_calls_as_an_argument_counts(
    schedule: str, stage: str, run: str, found: str, tmp_path: Path
) -> None:
    recipe = COUNTED.format(schedule=schedule, stage=stage, run=run)
    reported = facts.reported(tmp_path, recipe, ["MC474", "MC581"], judging=CLASSES)
    assert [f"{one.code} {one.message}" for one in reported] == [found] * bool(found)
    assert all(one.severity == "warning" and facts.lines(one)[0] == 5 for one in reported)
