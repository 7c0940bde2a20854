"""`meshctl runs`, `status` and `watch`, as a user calls them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from meshctl.cli.watch import watch
from meshctl.view.live.seen_run import SeenRun
from tests.cli.commands import meshctl
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

OLD = old_runs()[0]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs with one run."""
    shutil.copytree(DATA / "runs" / OLD, tmp_path / "runs" / "contract" / OLD, symlinks=True)
    return tmp_path / "runs"


def test_runs_and_the_state_of_one(runs: Path) -> None:
    listed = meshctl(runs.parent, "runs")
    assert listed.returncode == 0 and listed.stdout.splitlines()[1].startswith(f"contract/{OLD}  failed")
    for words in ([], ["contract"], [f"contract/{OLD}"], [str(runs / "contract" / OLD)]):
        done = meshctl(runs.parent, "status", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("contract: failed after 4 steps")
        assert "  cause: train:0 failed in stage metrics, step 5: ValueError" in done.stdout
    elsewhere = runs.rename(runs.parent / "others")
    assert meshctl(elsewhere.parent, "status", "contract", "--dir", "others").returncode == 0


def test_as_json(runs: Path) -> None:
    (row,) = json.loads(meshctl(runs.parent, "runs", "-f", "json").stdout)["runs"]
    data = json.loads(meshctl(runs.parent, "status", "-f", "json").stdout)
    assert row["state"] == data["state"] == "failed" and row["run"] == data["run"]
    assert data["metrics"]["metrics.updates"] == {"first": 1, "last": 4} and data["checkpoints"] == [3]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["status", "contrat"], 3, "the run `contrat` does not exist below runs: did you mean `contract`?"),
        (["status", "--dir", "none"], 3, "no runs: the folder none does not exist"),
        (["status", "."], 3, ". is a folder but not a run"),
        (["restart", "-f", "xml"], 2, "format `xml` does not exist; available: `text` and `json`"),
        (["runs", "none"], 3, "no runs: the folder none does not exist"),
        (["runs", "-f", "xml"], 2, "format `xml` does not exist; available: `text` and `json`"),
        (["status", "-f", "xml"], 2, "format `xml` does not exist; available: `text` and `json`"),
    ],
)
def test_errors_are_one_line(words: list[str], code: int, message: str, runs: Path) -> None:
    (runs.parent / "empty").mkdir()
    done = meshctl(runs.parent / "empty" if "." in words else runs.parent, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


def test_a_run_that_may_not_be_read(runs: Path) -> None:
    """As another user: root may read everything."""
    if os.geteuid():
        (runs / "contract" / OLD).chmod(0)
        done = meshctl(runs.parent, "status", f"contract/{OLD}")
        assert done.returncode == 3 and "cannot be read: permission denied" in done.stderr


def test_a_folder_without_runs(tmp_path: Path) -> None:
    done = meshctl(tmp_path, "runs", ".")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ". has no runs\n")


@pytest.mark.parametrize("word", ["contract", f"contract/{OLD}"])
def test_launch_does_not_take_the_name_of_a_run(word: str, runs: Path) -> None:
    done = meshctl(runs.parent, "launch", word)
    assert (done.returncode, done.stdout) == (3, "")
    help = f"  = help: `meshctl restart {word}` continues the run `contract/{OLD}`"
    assert done.stderr.splitlines() == [f"error[MC001]: recipe `{word}` does not exist", help]


def test_ctrl_c_while_watch_searches_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> SeenRun:
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenRun, "named", interrupted)
    assert watch("", "runs", "text") == 130 and capsys.readouterr() == ("", "")
