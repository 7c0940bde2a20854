"""Makes a scenario that fails smaller, with a few dozen runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.pipelines.generate import Scenario
from tests.pipelines.model import taken

MAX_RUNS = 25


def reduced(scenario: Scenario, check: Callable[[Scenario], object]) -> Scenario:
    """Removes parts of a scenario as long as `check` raises an exception. Returns the smallest one."""
    runs = 0
    while (found := list(smaller(scenario))) and runs < MAX_RUNS:
        for one in found[: MAX_RUNS - runs]:
            runs += 1
            if fails(one, check):
                scenario = one
                break
        else:
            break
    return scenario


def fails(scenario: Scenario, check: Callable[[Scenario], object]) -> bool:
    try:
        check(scenario)
    except Exception:
        return True
    return False


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yields the scenario without the second run, without one stage and those that take it, and without one key of
    `run`."""
    recipe = scenario.recipe
    if scenario.resume:
        yield replace(scenario, resume=None)
    for name in reversed(recipe["pipeline"]):
        if left := without(recipe["pipeline"], name):
            yield replace(scenario, recipe={**recipe, "pipeline": left})
    for key in recipe["run"]:
        if key not in ("steps", "checkpoint"):
            rest = {other: value for other, value in recipe["run"].items() if other != key}
            yield replace(scenario, recipe={**recipe, "run": rest})


def without(pipeline: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The stages that are left without one of them, and without those that take or follow it."""
    gone = {name}
    while more := {one for one, stage in pipeline.items() if one not in gone and gone & needs(stage)}:
        gone |= more
    return {one: stage for one, stage in pipeline.items() if one not in gone}


def needs(stage: Mapping[str, Any]) -> set[str]:
    dispatch = stage.get("dispatch")
    home = dispatch.get("home", "") if isinstance(dispatch, dict) else ""
    return taken(stage) | {*stage.get("after", []), home}
