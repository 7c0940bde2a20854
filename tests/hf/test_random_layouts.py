"""Random architectures on random layouts of up to 8 ranks that `validate` accepts: two steps equal those of one
process. 20 in `make test-all`, the same in every run; 500 in `make nightly`, new ones in every run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import pytest

from tests.hf import parity
from tests.hf.random_layouts import Drawn, drawn
from tests.runtime import worlds

CASES, PARTS = 20, 25
"""The number of cases of a test, and the number of nightly tests."""
SEEDS = 10**9


def wrong(cases: Sequence[Drawn]) -> dict[str, str]:
    """Returns the errors of the cases whose results differ from those of one process. Cases with the same
    number of ranks share a world."""
    expected = {one: parity.by_hand(one.case.task, one.case.exact) for one in cases}
    found: dict[str, str] = {}
    for ranks in sorted({one.ranks for one in cases}):
        own = [one for one in cases if one.ranks == ranks]
        while own:
            checks = [_check(number, one, expected[one]) for number, one in enumerate(own)]
            with tempfile.TemporaryDirectory() as folder:
                results = [*worlds.run(ranks, checks, Path(folder)).values()]
            failed = next((number for number, text in enumerate(results) if text != worlds.PASSED), None)
            if failed is None:
                break
            found[own[failed].name] = results[failed]  # the world has ended there
            own = own[failed + 1 :]
    return found


def _check(number: int, one: Drawn, expected: parity.Trained) -> worlds.Check:
    def check(rank: int) -> None:
        parity.check_equal(parity.on_mesh(one.case, one.sizes, one.case.exact), expected, one.case.exact)

    check.__name__ = f"check_{number}"
    return check


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
