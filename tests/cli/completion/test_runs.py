"""Completion of runs, groups and ranks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshctl.cli.completion.line import candidates
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has a run with one worker in `rollout` and two in `train`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "runs" / old_runs()[0], tmp_path / "runs" / "contract" / "1", symlinks=True)


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        (["status"], "", ["contract", "runs/"]),
        (["watch"], "contract/", ["contract/1"]),
        (["stop"], "runs/", ["runs/contract/"]),
        (["report", "contract"], "contract/", ["contract/1"]),
        (["logs", "contract"], "", ["rollout", "train", "script"]),
        (["logs", "contract"], "train:", ["train:0", "train:1"]),
        (["logs", "contract", "train:0"], "rollout:", ["rollout:0"]),
        (["logs", "nothing"], "", []),
        (["runs"], "", ["runs/"]),
        (["status", "--dir"], "", ["runs/"]),
    ],
)
def test_what_there_is(before: Sequence[str], word: str, found: list[str]) -> None:
    assert [one.text for one in candidates(before, word)] == found


def test_without_runs(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "runs")
    assert [*candidates(["status"], "")] == [] == [*candidates(["logs", "contract"], "")]
