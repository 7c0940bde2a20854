"""Blocks of stages (`repeat`) in plans: names, order, what runs with them, and one group of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.plan.resume_differences import differences
from meshctl.plan.subset import incoming, only
from meshctl.plan.views.topology import topology
from meshctl.recipe.load import load

PARTS = """
from meshctl import Batch, Component, endpoint

class Data(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Actor(Component):
    @endpoint
    def update(self, batch: Batch): ...
    @endpoint
    def exam(self, batch: Batch, scale): ...
    @endpoint
    def note(self, value): ...
    @endpoint
    def late(self, batch: Batch): ...
"""
HEAD = """
groups:
  one: {ranks: 2, device_type: cpu}
  two: {ranks: 2, device_type: cpu}
components:
  data: {_target_: x.Data, group: one}
  held: {_target_: x.Data, group: one}
  actor: {_target_: x.Actor, group: two}
pipeline:
"""
EVAL = """
  batch: {call: data.next, samples: 8}
  eval:
    every: 5
    after: late
    repeat: {until: questions}
    stages:
      again: {call: actor.late, in: questions}
      questions: {call: held.next, samples: 4}
      exam: {call: actor.exam, in: {batch: questions, scale: {from: metrics, dispatch: all}}, collect: mean}
  metrics: {call: actor.update, in: batch, collect: mean}
  note: {call: actor.note, in: eval.exam}
  late: {call: actor.late, in: batch, after: metrics}
  last: {call: actor.late, in: batch, after: eval}
"""
EPOCHS = """
  batch: {call: data.next, samples: 8}
  ppo:
    repeat: {times: 3, over: batch, size: 4, seed: 9}
    stages:
      update: {call: actor.update, in: batch}
  total: {call: actor.note, in: ppo.update}
"""


def plan_of(folder: Path, text: str) -> Plan:
    (folder / "x.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(text)
    loaded = load("recipe.yaml", (), folder)
    assert [found.message for found in loaded.report.errors] == []
    return resolve(loaded.recipe, loaded.endpoints)


@pytest.fixture
def evaluation(tmp_path: Path) -> Plan:
    return plan_of(tmp_path, HEAD + EVAL)


def test_stages_of_a_block_have_full_names_and_stay_together(evaluation: Plan) -> None:
    names = [stage.name for stage in evaluation.stages]
    assert names == ["batch", "metrics", "late", "eval.questions", "eval.again", "eval.exam", "note", "last"]
    assert [stage.block for stage in evaluation.stages] == [*[""] * 3, *["eval"] * 3, "", ""]
    inner = [stage for stage in evaluation.stages if stage.block]
    assert {stage.every for stage in inner} == {5}
    assert all(part.dispatch.allow_empty for stage in inner for part in stage.inputs)
    [block] = evaluation.blocks
    assert (block.name, block.until, block.times) == ("eval", "eval.questions", 1)
    assert Plan.from_json(evaluation.to_json()) == evaluation


def test_a_block_runs_where_all_its_inputs_run(evaluation: Plan) -> None:
    assert evaluation.inputs_of["eval.questions"] == {"metrics"}
    assert evaluation.inputs_of["eval.exam"] == {"metrics", "eval.questions"}
    into = [route.name for route in evaluation.routes if evaluation.is_into_block(route)]
    assert into == ["metrics -> eval.exam.scale"]


def test_the_source_of_a_block_does_not_end_the_run(evaluation: Plan) -> None:
    assert evaluation.bounding_sources == ("batch",)
    assert [stage.name for stage in evaluation.sources] == ["batch"]


def test_minibatches_of_a_stage_outside(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + EPOCHS)
    [block] = plan.blocks
    assert (block.until, block.times, block.over, block.size, block.seed) == ("", 3, "batch", 4, 9)
    assert plan.inputs_of["ppo.update"] == {"batch"}


def test_pictures_show_how_often_a_block_runs(evaluation: Plan, tmp_path: Path) -> None:
    shown = topology(evaluation)
    words = {stage.name: shown.repeat_of(stage) for stage in shown.stages}
    assert {name: text for name, text in words.items() if text} == {"eval.questions": "until it ends"}
    shown = topology(plan_of(tmp_path, HEAD + EPOCHS))
    assert [shown.repeat_of(stage) for stage in shown.stages] == ["", "3 rounds over batch by 4", ""]


def test_a_group_alone_runs_its_own_blocks_only(evaluation: Plan, tmp_path: Path) -> None:
    alone = only(evaluation, "two", ["batch -> metrics", "batch -> late", "batch -> last"])
    assert alone.left_out == ("eval", "note") and not alone.missing
    assert [stage.name for stage in alone.plan.stages] == ["metrics", "late", "last"]
    assert alone.plan.blocks == ()
    plan = plan_of(tmp_path, HEAD + EPOCHS)
    assert [route.name for route in incoming(plan, "two")] == ["batch -> ppo.update"]
    alone = only(plan, "two", ["batch -> ppo.update"])
    assert alone.left_out == () and [block.name for block in alone.plan.blocks] == ["ppo"]


# Differences from a checkpoint that `tests/cli/test_resume_differences.py` has no example of

STAGE = {"name": "batch", "kind": "call", "component": "source", "method": "next", "inputs": []}
FACTS: dict[str, Any] = {
    "components": [{"name": "source", "target": "parts.Source"}],
    "stages": [STAGE],
    "blocks": [{"name": "rounds", "over": "batch", "times": 1, "seed": 0}],
}


def messages(now: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in differences(FACTS, now, (), ())]


def test_a_changed_block_is_listed() -> None:
    [block] = FACTS["blocks"]
    assert messages(FACTS) == []
    assert messages({**FACTS, "blocks": [{**block, "times": 3}]}) == [
        ("", "`times` of the block `rounds` changed: 1 -> 3")
    ]
    assert messages({**FACTS, "blocks": [{**block, "name": "passes"}]}) == [
        ("", "the block `passes` is new"),
        ("", "the block `rounds` is gone"),
    ]


def test_a_source_that_moved_into_a_block_has_lost_its_position() -> None:
    [found] = messages({**FACTS, "stages": [{**STAGE, "block": "rounds"}]})
    assert found[0] == "MC723"
