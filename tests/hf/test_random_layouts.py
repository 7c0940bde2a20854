"""Random architectures on random layouts of up to 8 ranks that `validate` accepts: two steps equal those of one
process. 20 in `make test-all`, the same in every run; 500 in `make nightly`, new ones in every run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import pytest

from tests.hf import parity
from tests.hf.random_layouts import drawn
from tests.hf.test_parity import wrong

CASES, PARTS = 20, 25
"""The number of cases of a test, and the number of nightly tests."""
SEEDS = 10**9


def check_seeds(seeds: Sequence[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "STEPS", 2)
    monkeypatch.setattr(parity, "ALL", dict(parity.ALL))
    assert wrong([drawn(seed, folder) for seed in seeds]) == {}, f"of the seeds {list(seeds)}"


@pytest.mark.slow_suite
@pytest.mark.timeout(1200)
def test_random_layouts_equal_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_seeds(range(CASES), tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_same_for_hundreds(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = SystemRandom().sample(range(CASES, SEEDS), CASES)
    check_seeds(seeds, tmp_path, monkeypatch)


@pytest.mark.slow_suite
def test_only_layouts_that_validate_accepts_are_drawn(tmp_path: Path) -> None:
    found = [drawn(seed, tmp_path) for seed in range(5)]
    assert len({str(one.sizes) for one in found}) > 3
