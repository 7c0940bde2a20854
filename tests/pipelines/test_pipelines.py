"""Random pipelines do what a model of their recipe says: which stage runs in which step with which samples and
weights, what is a metric and its value, when and by what the run ends, what a checkpoint holds and how a run goes
on from it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, note, settings

from meshctl.recipe.compose.yaml_scalars import dump
from tests.pipelines.compare import first_difference
from tests.pipelines.generate import Scenario, resumed, scenarios
from tests.pipelines.model import Model, Saved
from tests.pipelines.run import Ran, in_memory, read
from tests.pipelines.shares import Fault
from tests.pipelines.sources import ENDLESS


def check(scenario: Scenario, file: Path) -> None:
    """The property, for one scenario."""
    recipe = scenario.recipe
    ran = checked(recipe, file, None, is_stopped=bool(scenario.stop_at))
    if ran is None or not scenario.resume or not ran.saved:
        return
    start = ran.saved[len(ran.saved) // 2]
    recipe = resumed(scenario, start.step)
    note(f"resumed from step-{start.step}")
    event("resumed")
    checked(recipe, file, start, is_stopped=bool(scenario.stop_at))


def checked(recipe, file: Path, start: Saved | None, is_stopped: bool) -> Ran | None:
    note(dump(recipe))
    plan, report = read(recipe, file)
    errors = [f"{one.code} {one.message}" for one in report.errors]
    ran = in_memory(plan, start) if plan else Ran(fault="; ".join(errors))
    stopped = ran.last if is_stopped and not ran.fault else ENDLESS
    try:
        expected = Model(recipe, ran.seen, stopped).run(start)
    except Fault as fault:
        event(f"fails: {'refused' if plan is None else 'in the run'}")
        assert ran.fault, f"the run did not fail, the model: {fault}"
        return None
    if "steps ahead, so its value for the end is gone" in ran.fault:
        event("too far ahead")
        return None
    assert not ran.fault, f"the run failed: {ran.fault}"
    difference = first_difference(expected, ran)
    assert not difference, difference
    event("runs")
    return ran


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "recipe.yaml"


@settings(max_examples=200, suppress_health_check=list(HealthCheck), print_blob=False)
@given(scenarios())
def test_random_pipelines_do_what_the_model_does(file: Path, scenario: Scenario) -> None:
    check(scenario, file)
