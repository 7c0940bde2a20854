"""`meshctl launch -m`, as a user calls it: real runs of real processes; and the flags of Hydra."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from meshctl.cli.launch import Options
from meshctl.cli.multirun import multirun
from meshctl.engines.engine import ENGINES, CannotStart
from meshctl.engines.local import LocalEngine
from meshctl.plan.model import Plan
from meshctl.run.directory import Start
from tests.cli.commands import meshctl
from tests.cli.small_launch import PATIENT, steps
from tests.command_server import Started

MOOD = "components.trainer.args.mood"


def rows(output: str) -> list[list[str]]:
    """Returns the rows of the final table without the header. Columns are two spaces apart."""
    lines = output[output.rindex("\n  job  overrides") :].strip().splitlines()
    return [re.split(r"  +", line.strip()) for line in lines[1:]]


def test_every_combination_is_run_and_the_worst_code_counts(folder: Path) -> None:
    done = meshctl(folder, "launch", "-m", "recipe.yaml", f"{MOOD}=glad,raises_late", "run.steps=2")
    assert done.returncode == 5, done.stderr
    first, second = rows(done.stdout)
    assert first[:4] == ["1", f"{MOOD}=glad", "done", "4"]
    assert second[:3] == ["2", f"{MOOD}=raises_late", "failed: exit code 5"]
    assert second[3] == "2"
    assert "two:1 failed in stage sum, step 2: ValueError: boom" in done.stderr
    runs = [folder / row[4] for row in (first, second)]
    assert runs[0] != runs[1] and {*folder.glob("runs/small/*")} == {*runs}
    for run, mood in zip(runs, ("glad", "raises_late"), strict=True):
        plan = json.loads((run / "plan.json").read_text())
        assert [one["args"] for one in plan["components"] if one["name"] == "trainer"] == [{"mood": mood}]
    assert steps(runs[0]) == [1, 2]


def test_nothing_is_started_unless_every_combination_is_right(folder: Path) -> None:
    done = meshctl(folder, "launch", "--multirun", "recipe.yaml", "run.steps=2,x", "groups.two.ranks=1,2")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("error[MC102]: `steps` must be an integer of at least 0, not the text `x`") == 1
    assert "job 3 of 4: run.steps=x groups.two.ranks=1\nerror[MC102]" in done.stderr
    assert done.stderr.endswith("job 4 of 4: run.steps=x groups.two.ranks=2\nthe same as job 3\n")
    assert not (folder / "runs").exists()


def test_ctrl_c_ends_the_current_job_and_skips_the_rest(folder: Path) -> None:
    words = ("-m", "seed=1,2,3", f"{MOOD}=slow", PATIENT, "run.steps=100000")
    running = Started(folder, "launch", "recipe.yaml", *words)
    running.until("^step ")
    os.killpg(running.pid, signal.SIGINT)
    code, output = running.end()
    assert code == 130, output
    first, *others = rows("\n" + output)
    assert first[:3] == ["1", "seed=1", "failed: exit code 130"]
    assert others[:2] == [["2", "seed=2", "skipped", "-", "-"], ["3", "seed=3", "skipped", "-", "-"]]
    (run,) = folder.glob("runs/small/*")
    assert first[-1] == f"runs/small/{run.name}" and (run / "checkpoints" / "latest").is_dir()


def test_a_dry_run_prints_every_job(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "-m", "--dry-run", "groups.two.ranks=range(1,3)")
    assert done.returncode == 0, done.stderr
    assert "job 1 of 2: groups.two.ranks=1\nsmall: 2 groups, 2 workers" in done.stdout
    assert "job 2 of 2: groups.two.ranks=2\nsmall: 2 groups, 3 workers" in done.stdout
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["."], "error: -m reads its recipe for each run, and starts new ones: give a file, not .\n"),
        (["recipe.yaml", "seed=range(9999)"], "error: the sweeps make more than 1,000 jobs\n"),
        (["recipe.yaml", "run@vars.x=glob(z*)"], "error: `run@vars.x=glob(z*)` has no value\n"),
    ],
)
def test_misuse_is_one_line(folder: Path, words: list[str], message: str) -> None:
    done = meshctl(folder, "launch", "-m", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_an_override_with_dashes(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "--run.steps=3")
    message = "error: overrides are written without dashes: run.steps=3\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


class Refusing(LocalEngine):
    def preflight(self, plan: Plan, start: Start) -> None:
        raise CannotStart("the engine refuses")


def test_all_jobs_run_on_the_engine_that_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(ENGINES, "refusing", f"{__name__}:Refusing")
    assert multirun("recipe.yaml", ["seed=1,2"], Options(engine="refusing")) == 4
    assert "error: the engine refuses" in capsys.readouterr().err
