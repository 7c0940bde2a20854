"""Large recipes: the cost of checks grows linearly, and recursion does not grow with the length."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from meshctl.recipe.load import Loaded, load
from meshctl.recipe.rules import components, devices, flow, groups, rules_of
from meshctl.recipe.rules.facts import Facts

CODE = """
from meshctl import Batch, Component, endpoint

class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Step(Component):
    @endpoint
    def run(self, batch: Batch) -> Batch: ...
"""


def loaded(folder: Path, recipe: str) -> Loaded:
    (folder / "steps.py").write_text(CODE, encoding="utf-8")
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return load("recipe.yaml", [], folder, environ={}, detect=lambda: "cpu")


def recipe_of(components: str, stages: str) -> str:
    groups = "groups: {train: {ranks: 2, device_type: cpu}}"
    return f"{groups}\ncomponents:\n{components}pipeline:\n{stages}run: {{steps: 1}}\n"


def sources(count: int) -> str:
    """Returns a recipe with this many components, each with a stage."""
    own = "_target_: steps.Source, group: train, parallel: {dp_size: 2}"
    components = "".join(f"  c{n}: {{{own}}}\n" for n in range(count))
    return recipe_of(components, "".join(f"  s{n}: {{call: c{n}.next, samples: 4}}\n" for n in range(count)))


def chain(count: int) -> str:
    """Returns a recipe with this many stages, each of which takes the previous one."""
    stages = "".join(f"  s{n}: {{call: step.run, in: s{n - 1}, samples: 4}}\n" for n in range(1, count))
    own = "  source: {_target_: steps.Source, group: train}\n  step: {_target_: steps.Step, group: train}\n"
    return recipe_of(own, f"  s0: {{call: source.next, samples: 4}}\n{stages}")


def calls_of(rules: tuple[Any, ...], facts: Facts) -> int:
    """Returns the number of Python calls in the rules, which is the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(trace)
    try:
        assert not [found for rule in rules for found in rule(facts)]
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("recipe", [sources, chain])
def test_twice_the_recipe_costs_twice(tmp_path: Path, recipe: Any) -> None:
    counts = []
    for size in (40, 80):
        facts = loaded(tmp_path, recipe(size)).facts
        assert facts is not None and facts.meshes and facts.classes
        counts.append(calls_of((*rules_of(flow), *rules_of(components), *rules_of(devices)), facts))
    assert counts[1] < 2.2 * counts[0]


def test_groups_are_looked_at_once_each(tmp_path: Path) -> None:
    """The rule about pairs of groups does constant work per group."""
    some = "".join(
        f"  g{n}: {{ranks: 2, device_type: cuda, program: steps.py, visible_devices: '{2 * n},{2 * n + 1}'}}\n"
        for n in range(60)
    )
    facts = loaded(tmp_path, f"groups:\n{some}").facts
    assert facts is not None and facts.allocation
    pairs = 60 * 59 // 2
    assert calls_of((devices.hardware_is_disjoint,), facts) < 20 * pairs


def test_a_long_chain_is_no_deep_one(tmp_path: Path) -> None:
    """Samples are followed to their source over any number of stages."""
    facts = loaded(tmp_path, chain(400)).facts
    assert facts is not None
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        assert not [found for rule in (*rules_of(flow), *rules_of(groups)) for found in rule(facts)]
    finally:
        sys.setrecursionlimit(limit)
