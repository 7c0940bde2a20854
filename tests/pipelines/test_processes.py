"""Random pipelines in real processes do what a model of their recipe does. A scenario that fails is not shrunk, which
would launch hundreds of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.pipelines.check import check_in_processes
from tests.pipelines.generate import Scenario, scenarios

MAX_WORKERS = 4
NIGHTLY_PARTS, PART = 25, 20
NOT_SHRUNK = [phase for phase in Phase if phase is not Phase.shrink]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@settings(max_examples=8, phases=NOT_SHRUNK, suppress_health_check=list(HealthCheck))
@given(scenarios(MAX_WORKERS))
def test_random_pipelines_do_what_the_model_does(folder: Path, scenario: Scenario) -> None:
    check_in_processes(scenario, folder)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(NIGHTLY_PARTS))
@settings(max_examples=PART, phases=NOT_SHRUNK, suppress_health_check=list(HealthCheck))
@given(scenarios(MAX_WORKERS, may_have_programs=True))
def test_the_same_for_hundreds(part: int, folder: Path, scenario: Scenario) -> None:
    check_in_processes(scenario, folder)
