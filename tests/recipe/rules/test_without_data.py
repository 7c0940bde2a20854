"""The rules about stages without data, `in: []`."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load

CLASSES = """
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
RECIPE = """
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
    (tmp_path / "engines.py").write_text(CLASSES)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(stage=stage))
    loaded = load("recipe.yaml", (), tmp_path, environ={}, detect=lambda: "cpu")
    found = [one.code for one in loaded.report.diagnostics if one.code != "MC539"]
    assert sorted(found) == expected, loaded.report.diagnostics
    if not expected:
        plan = resolve(loaded.recipe, {})
        assert plan.stage("other").is_without_data and not plan.stage("other").is_source
        assert [route.name for route in plan.routes] == []
