"""Random pipelines do what a model of their recipe does: which stage runs in which step with which samples and
weights, what is a metric and its value, when and by what the run ends, what a checkpoint holds and how a run goes
on from it.

    pytest -m nightly tests/pipelines      thousands of them
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.pipelines.check import check_in_threads
from tests.pipelines.generate import Scenario, scenarios

NIGHTLY_PARTS, PART = 40, 250


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "recipe.yaml"


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_random_pipelines_do_what_the_model_does(file: Path, scenario: Scenario) -> None:
    check_in_threads(scenario, file)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_the_same_over_the_sockets_of_one_node_and_of_two(nodes: int, file: Path, scenario: Scenario) -> None:
    check_in_threads(scenario, file, nodes)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(NIGHTLY_PARTS))
@settings(max_examples=PART, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_the_same_for_thousands(part: int, file: Path, scenario: Scenario) -> None:
    check_in_threads(scenario, file)
