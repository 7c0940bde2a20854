"""`meshctl runs`, `status`, `watch`, `logs` and `report`, as a user calls them, on a run of an earlier version."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli.output import Refusal
from meshctl.cli.status import since_of, watch
from meshctl.run.directory import RunDir
from meshctl.run.logs import LogFile
from meshctl.view.live.seen_run import SeenRun
from tests.cli.commands import MAIN, meshctl
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

OLD = old_runs()[0]
LINES = 3


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a run, whose workers have written some lines, and other files."""
    run = RunDir(tmp_path / "runs" / "contract" / OLD)
    shutil.copytree(DATA / "runs" / OLD, run.path, symlinks=True)
    shutil.rmtree(run.path / "logs")
    for second, (group, rank) in enumerate([("rollout", 0), ("train", 1), ("train", 0)]):
        log = run.log(group, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        for number in range(LINES):
            file = LogFile(log, now=lambda at=10.0 * number + second: at)
            file.write(f"{group} \x1b[1mline\x1b[0m {number}\n".encode())
            file.close()
    (tmp_path / "none.yaml").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


FORMATS = "format `xml` does not exist; available: `text` and `json`"
NO_RUN = "the run `contrat` does not exist below runs: did you mean `contract`?"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("status contrat", 3, NO_RUN),
        ("status --dir none", 3, "no runs: the folder none does not exist"),
        ("status empty", 3, "empty is a folder but not a run"),
        ("status -f xml", 2, FORMATS),
        ("runs none", 3, "no runs: the folder none does not exist"),
        ("logs contrat", 3, NO_RUN),
        ("logs contract trian", 2, "the group `trian` does not exist: did you mean `train`?"),
        (
            "logs contract rollout:2",
            2,
            "the rank `rollout:2` does not exist: `rollout` has 1 worker, from 0 on",
        ),
        ("logs --grep (", 2, "--grep (: missing )"),
        ("logs --since 5x", 2, "--since 5x: give 90s, 5m, 2h, 1d or a time such as 20"),
        ("report contract contract contract", 2, "a report shows one run or two, not 3"),
        ("report -o runs", 2, "`runs` cannot be written: it is a folder"),
        ("report -o none.yaml/x.html", 2, "`none.yaml/x.html` cannot be written: its folder is a file"),
    ],
)
def test_errors_are_one_line(words: str, code: int, message: str, place: Path) -> None:
    done = meshctl(place, *words.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


# runs, status and watch


def test_runs_and_the_state_of_one(place: Path) -> None:
    listed = meshctl(place, "runs")
    assert listed.returncode == 0 and listed.stdout.splitlines()[1].startswith(f"contract/{OLD}  failed")
    for words in ([], ["contract"], [f"contract/{OLD}"], [str(place / "runs" / "contract" / OLD)]):
        done = meshctl(place, "status", *words)
        assert done.returncode == 0 and done.stdout.startswith("contract: failed after 4 steps"), done.stderr
        assert "  cause: train:0 failed in stage metrics, step 5: ValueError" in done.stdout
    (row,) = json.loads(meshctl(place, "runs", "-f", "json").stdout)["runs"]
    data = json.loads(meshctl(place, "status", "-f", "json").stdout)
    assert row["state"] == data["state"] == "failed" and row["run"] == data["run"]
    assert data["metrics"]["metrics.updates"] == {"first": 1, "last": 4} and data["checkpoints"] == [3]
    (place / "runs").rename(place / "others")
    assert meshctl(place, "status", "contract", "--dir", "others").returncode == 0
    done = meshctl(place, "runs", "empty")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "empty has no runs\n")


def test_ctrl_c_while_watch_searches_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> SeenRun:
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenRun, "named", interrupted)
    assert watch("", "runs", "text") == 130 and capsys.readouterr() == ("", "")


# logs


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        ([], {"train:0", "train:1", "rollout:0"}),
        (["contract", "train"], {"train:0", "train:1"}),
        (["train:1"], {"train:1"}),
        ([f"contract/{OLD}", "rollout", "train:0"], {"rollout:0", "train:0"}),
        (["--grep", "^rollout", "-f"], {"rollout:0"}),
        (["--since", "1970-01-01T00:00:22Z"], {"train:0"}),
    ],
)
def test_a_choice_of_lines(words: list[str], workers: set[str], place: Path) -> None:
    done = meshctl(place, "logs", *words)
    lines = done.stdout.splitlines()
    assert {line.split()[1].rstrip(":") for line in lines} == workers and lines == sorted(lines), done.stderr
    assert words or lines[1] == "1970-01-01T00:00:01.000Z train:1: train line 0"


def test_lines_as_json(place: Path) -> None:
    (line, *_) = meshctl(place, "logs", "train:0", "--format", "json").stdout.splitlines()
    worker = {"time": "1970-01-01T00:00:02.000Z", "group": "train", "rank": 0}
    assert json.loads(line) == {**worker, "text": "train \x1b[1mline\x1b[0m 0"}


def test_a_reader_that_has_seen_enough(place: Path) -> None:
    LogFile(RunDir(place / "runs" / "contract" / OLD).log("train", 0)).write(
        b"a long line of output\n" * 50_000
    )
    command = f'"{sys.executable}" -c "{MAIN}" logs | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["0"] and done.stderr == ""


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", ""),
        ("90s", "1970-01-01T00:58:30.000Z"),
        ("0.5h", "1970-01-01T00:30:00.000Z"),
        ("2026-11-23T13:14:15+02:00", "2026-11-23T11:14:15.000Z"),
    ],
)
def test_times(text: str, time: str) -> None:
    assert since_of(text, 3600.0) == time
    with pytest.raises(Refusal, match="give 90s"):
        since_of("yesterday", 0.0)


# report


def test_the_page_is_in_the_run_directory_or_where_it_is_wanted(place: Path) -> None:
    done = meshctl(place, "report")
    page = place / "runs" / "contract" / OLD / "report.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{page}\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "train:0 failed in stage metrics, step 5" in text
    assert meshctl(place, "report", "contract", "-o", "it.html").stdout == "it.html\n"
    shown = text.partition("<footer>")[0]
    assert (place / "it.html").read_text(encoding="utf-8").startswith(shown)
    assert meshctl(place, "report", "-o", "-").stdout.startswith(shown)


def test_two_runs(place: Path) -> None:
    other = place / "runs" / "contract" / "other"
    shutil.copytree(place / "runs" / "contract" / OLD, other, symlinks=True)
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: contract", "name: another"))
    done = meshctl(place, "report", f"contract/{OLD}", "contract/other")
    file = f"report-contract-{OLD}-and-contract-other.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "")
    assert "<ins>+ name: another\n</ins>" in (place / file).read_text(encoding="utf-8")


def test_damaged_files_of_a_run(place: Path) -> None:
    run = place / "runs" / "contract" / OLD
    (run / "recipe.yaml").write_text("name: [\ntoken: hf_abcdefghijklmnopqrstuvwxyz\n")
    (run / "metrics.jsonl").write_text('{"step":1,"time":\nnull\n{"step":2,"ti')
    (run / "events" / "train-0.jsonl").write_bytes(b'\xff\n{"name":"step"}\n{"name":"step","gro')
    done = meshctl(place, "report", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "name: [" in done.stdout and "hf_abcdef" not in done.stdout
    (run / "plan.json").write_text("{}")
    done = meshctl(place, "report")
    assert done.returncode == 3 and done.stderr.startswith(f"error: {run / 'plan.json'} cannot be read")
