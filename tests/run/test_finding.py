from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshctl.run.finding import FILES, NoRun, find, name_of, runs_below


def made(path: Path, launched: int = 0) -> Path:
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_text("{}")
    os.utime(path / "start.json", (launched, launched))
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "runs/grpo/20260101-000000", 10)
    made(tmp_path / "runs/grpo/20260102-000000", 30)
    made(tmp_path / "runs/sft/20260103-000000", 20)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("", "grpo/20260102-000000"),
        ("grpo", "grpo/20260102-000000"),
        ("sft", "sft/20260103-000000"),
        ("grpo/20260101-000000", "grpo/20260101-000000"),
        ("runs/grpo/20260101-000000", "grpo/20260101-000000"),
        ("runs/grpo/20260101-000000/", "grpo/20260101-000000"),
        ("runs/sft", "sft/20260103-000000"),
        ("runs", "grpo/20260102-000000"),
    ],
)
def test_a_run_is_named_in_several_ways(word: str, name: str, runs: Path) -> None:
    assert name_of(find(word, Path("runs"))) == name


def test_a_folder_with_the_name_of_a_recipe_does_not_hide_its_runs(runs: Path) -> None:
    (runs.parent / "sft").mkdir()
    assert name_of(find("sft", Path("runs"))) == "sft/20260103-000000"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gpro", "the run `gpro` does not exist below runs: did you mean `grpo`?"),
        ("xyz", "the run `xyz` does not exist below runs: available: `grpo` and `sft`"),
        ("grpo/20260101-000001", "did you mean `grpo/20260101-000000`?"),
        ("other", "other is a folder but not a run: it has no `recipe.yaml`, `plan.json` and `start.json`"),
        ("a-file", "a-file is a file: give the folder of a run"),
        ("\0", "does not exist"),
        ("x" * 5000, "the run `xxx"),
    ],
)
def test_what_is_no_run_names_what_there_is(word: str, message: str, runs: Path) -> None:
    (runs.parent / "other").mkdir()
    (runs.parent / "a-file").touch()
    with pytest.raises(NoRun) as caught:
        find(word, Path("runs"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_without_any_run(tmp_path: Path) -> None:
    with pytest.raises(NoRun, match=r"the folder .*/runs does not exist"):
        find("", tmp_path / "runs")
    with pytest.raises(NoRun, match="has no runs"):
        find("", tmp_path)
    with pytest.raises(NoRun, match="the run `x` does not exist"):
        find("x", tmp_path)


def test_folders_inside_of_runs_are_not_searched(runs: Path) -> None:
    made(runs / "sft/20260103-000000/recorded/inner")
    made(runs / ".hidden/20260103-000000")
    assert len(runs_below(runs)) == 3
