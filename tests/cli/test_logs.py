"""`meshctl logs`, as a user calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli.logs import Misused, since_of
from meshctl.run.directory import RunDir
from meshctl.run.log_files import LogFile
from tests.cli.commands import MAIN, meshctl
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

LINES = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run whose workers have written some lines."""
    path = tmp_path / "runs" / "contract" / "1"
    shutil.copytree(DATA / "runs" / old_runs()[0], path, symlinks=True)
    shutil.rmtree(path / "logs")
    for second, (group, rank) in enumerate([("rollout", 0), ("train", 1), ("train", 0)]):
        log = RunDir(path).log(group, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        for number in range(LINES):
            file = LogFile(log, now=lambda at=10.0 * number + second: at)
            file.write(f"{group} \x1b[1mline\x1b[0m {number}\n".encode())
            file.close()
    return tmp_path


def test_lines_of_several_ranks(folder: Path) -> None:
    done = meshctl(folder, "logs")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * LINES and lines == sorted(lines)
    assert lines[1] == "1970-01-01T00:00:01.000Z train:1: train line 0"


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["contract", "train"], {"train:0", "train:1"}),
        (["train:1"], {"train:1"}),
        (["contract/1", "rollout", "train:0"], {"rollout:0", "train:0"}),
        (["--grep", "^rollout", "-f"], {"rollout:0"}),
        (["--since", "1970-01-01T00:00:22Z"], {"train:0"}),
    ],
)
def test_a_choice_of_lines(words: list[str], workers: set[str], folder: Path) -> None:
    done = meshctl(folder, "logs", *words)
    assert {line.split()[1].rstrip(":") for line in done.stdout.splitlines()} == workers, done.stderr


def test_as_json(folder: Path) -> None:
    (line, *_) = meshctl(folder, "logs", "train:0", "--format", "json").stdout.splitlines()
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:02.000Z",
        "group": "train",
        "rank": 0,
        "text": "train \x1b[1mline\x1b[0m 0",
    }


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["contract", "trian"], 2, "the group `trian` does not exist: did you mean `train`?"),
        (
            ["contract", "rollout:2"],
            2,
            "the rank `rollout:2` does not exist: `rollout` has 1 worker, from 0 on",
        ),
        (["contract", "rollout:x"], 2, "the rank `rollout:x` does not exist"),
        (["contrat"], 3, "the run `contrat` does not exist below runs: did you mean `contract`?"),
        (["--grep", "("], 2, "--grep (: missing )"),
        (["--since", "5x"], 2, "--since 5x: give 90s, 5m, 2h, 1d or a time such as 20"),
    ],
)
def test_errors_are_one_line(words: list[str], code: int, message: str, folder: Path) -> None:
    done = meshctl(folder, "logs", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.startswith(f"error: {message}")


def test_a_reader_that_has_seen_enough(folder: Path) -> None:
    log = RunDir(folder / "runs" / "contract" / "1").log("train", 0)
    LogFile(log).write(b"a long line of output\n" * 50_000)
    command = f'"{sys.executable}" -c "{MAIN}" logs | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["0"] and done.stderr == ""


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", ""),
        ("90s", "1970-01-01T00:58:30.000Z"),
        ("0.5h", "1970-01-01T00:30:00.000Z"),
        ("1d", "1970-01-01T00:00:00.000Z"),
        ("2026-11-23T13:14", "2026-11-23T13:14:00.000Z"),
        ("2026-11-23T13:14:15+02:00", "2026-11-23T11:14:15.000Z"),
    ],
)
def test_times(text: str, time: str) -> None:
    assert since_of(text, 3600.0) == time


def test_what_is_no_time() -> None:
    with pytest.raises(Misused, match="give 90s"):
        since_of("yesterday", 0.0)
