"""A component on one worker: a group of its own with one worker, and the hints that lead to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load

PARTS = """
from meshctl import Batch, Component, endpoint

class Reader(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Writer(Component):
    @endpoint
    def write(self, batch: Batch) -> None: ...
"""

RECIPE = """
groups:
  train: {ranks: 4, device_type: cuda}
  write: {ranks: 1, device_type: cuda, colocate: train}
components:
  reader: {_target_: parts.Reader, group: train}
  writer: {_target_: parts.Writer, group: write}
pipeline:
  batch: {call: reader.next, samples: 8}
  written: {call: writer.write, in: batch}
run: {steps: 2}
"""


def test_a_group_of_one_worker_shares_the_first_device(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    loaded = load("recipe.yaml", [], tmp_path)
    assert not loaded.report.errors
    plan = resolve(loaded.recipe, loaded.endpoints)
    assert [worker.devices for worker in plan.workers("write")] == [(0,)]
    assert plan.component("writer").mesh.world_size == 1


@pytest.mark.parametrize("key", ["remote_class", "execute_on"])
def test_the_word_of_other_systems_is_answered_with_such_a_group(key: str, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    loaded = load("recipe.yaml", [f"+components.writer.{key}=first"], tmp_path)
    [found] = loaded.report.errors
    assert "a component on one worker is in a group of its own, `{ranks: 1, colocate: GROUP}`" in found.help
