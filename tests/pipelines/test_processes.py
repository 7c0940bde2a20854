"""Random pipelines in real processes do what a model of their recipe does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.pipelines.check import check_in_processes
from tests.pipelines.generate import Scenario, scenarios

MAX_WORKERS = 4
NIGHTLY_PARTS, PART = 25, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(scenarios(MAX_WORKERS))
def test_random_pipelines_do_what_the_model_does(folder: Path, scenario: Scenario) -> None:
    check_in_processes(scenario, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(NIGHTLY_PARTS))
@settings(max_examples=PART, suppress_health_check=list(HealthCheck))
@given(scenarios(MAX_WORKERS))
def test_the_same_for_hundreds(part: int, folder: Path, scenario: Scenario) -> None:
    check_in_processes(scenario, folder)
