"""`launch --detach`, `watch`, `stop` and `restart`, as a user calls them, on one run."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.launcher import Launcher
from meshctl.view.live.state_file import folded_state, read_data, state_of
from tests.cli.commands import meshctl
from tests.cli.small_launch import PATIENT, run_of, steps
from tests.command_server import Started
from tests.hang import HANG_S
from tests.view.live.folds import comparable

SLOW = "components.trainer.args.mood=slow"
pytestmark = pytest.mark.slow


@pytest.fixture
def background(folder: Path) -> Iterator[Path]:
    """A folder with a recipe, and the launchers in it, which are killed at the end of a test that failed."""
    yield folder
    for run in folder.glob("runs/*/*"):
        launcher_of(run).send(signal.SIGKILL)


def launcher_of(run: Path) -> Launcher:
    return Launcher.of_data(json.loads((run / "state.json").read_text())["launcher"])


def test_what_is_refused_appears_on_the_terminal(background: Path) -> None:
    for words, code, message in (
        (["groups.two.ranks=no"], 1, "error[MC"),
        (["groups.two.env={A: '${oc.env:NO_SUCH_NAME}'}"], 4, "NO_SUCH_NAME"),
        (["--debug", "two:0"], 2, "error: --detach does not go with --debug\n"),
        (["-m"], 2, "error: --detach does not go with --multirun\n"),
    ):
        done = meshctl(background, "launch", "recipe.yaml", "--detach", *words)
        assert (done.returncode, done.stdout) == (code, "") and message in done.stderr
    assert not (background / "runs").exists()


def test_a_run_in_the_background(background: Path) -> None:
    begun = meshctl(background, "launch", "recipe.yaml", "--detach", SLOW, PATIENT, "run.steps=100000")
    assert begun.returncode == 0, begun.stderr
    run = run_of(background)
    name = f"small/{run.name}"
    assert begun.stdout.splitlines() == [
        f"{run} runs in the background",
        f"  watch it: meshctl watch {name}",
        f"  its logs: meshctl logs {name} -f",
        f"  stop it:  meshctl stop {name}",
    ]
    launcher = launcher_of(run)
    assert os.getsid(launcher.pid) == launcher.pid and launcher.ignores(signal.SIGHUP)
    assert not launcher.ignores(signal.SIGINT)
    watching = Started(background, "watch")
    watching.until(f"^small: 2 groups, 3 workers, in {re.escape(str(run))}$")
    saved = meshctl(background, "stop", "--checkpoint")
    assert saved.returncode == 0 and f"{name}: checkpoint of step " in saved.stdout, saved.stderr
    (row,) = json.loads(meshctl(background, "runs", "-f", "json").stdout)["runs"]
    assert row["state"] == "running" and launcher.is_alive()
    ended = meshctl(background, "stop", "small", "-f", "json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["state"] == "interrupted"
    assert launcher.is_alive() is False
    code, out = watching.end()
    assert code == 130 and "\nsmall: interrupted (SIGINT)" in out
    again = meshctl(background, "stop")
    assert again.returncode == 0 and again.stdout.startswith(f"{name} was not running: small: interrupted")
    last = steps(run)[-1]
    done = meshctl(background, "restart", f"run.steps={last + 2}", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "done" and f"small: done after {last + 2} steps" in done.stderr
    assert steps(run) == list(range(1, last + 3))
    assert "interrupted (SIGINT)" in (run / "logs" / "launcher.log").read_text()
    status = json.loads(meshctl(background, "status", "-f", "json").stdout)
    assert (status["state"], status["step"], status["attempt"]) == ("done", last + 2, 1)
    assert status["metrics"]["sum.seen"] == {"first": 2.0, "last": 2.0 * (last + 2)}
    plan, kept = Plan.read(run / "plan.json"), RunDir(run)
    assert comparable(state_of(plan, read_data(kept))) == comparable(folded_state(plan, kept))


def test_a_run_whose_launcher_was_killed_is_lost(background: Path) -> None:
    assert meshctl(background, "launch", "recipe.yaml", "--detach", SLOW, "run.steps=100000").returncode == 0
    launcher = launcher_of(run_of(background))
    assert launcher.send(signal.SIGKILL) and launcher.wait(HANG_S)
    (row,) = json.loads(meshctl(background, "runs", "-f", "json").stdout)["runs"]
    assert row["state"] == "lost"
    watched = meshctl(background, "watch")
    gone = "error: the launcher of the run is gone: it was killed\n"
    assert (watched.returncode, watched.stderr) == (5, gone)
    assert "ended without a report of its launcher" in watched.stdout
    refused = meshctl(background, "stop", "--checkpoint")
    assert refused.returncode == 4 and "is not running" in refused.stderr
    assert meshctl(background, "stop", "--checkpoint", "--now").returncode == 2
