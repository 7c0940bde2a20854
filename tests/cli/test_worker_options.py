"""`launch --follow` and `launch --debug`, as a user calls them; the debugger has a real terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.events import Follower
from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, RECIPE, run_of
from tests.cli.terminal import Terminal
from tests.log_text import output_of

SAYING = """

class Saying(Trainer):
    def setup(self) -> None:
        print("the model of rank", self.rank)

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        print("in step", self.step)
        if self.mood == "stops" and self.step == 2:
            answer = self.rank * 41 + 1
            breakpoint()
        return {"seen": float(len(batch))}
"""
STOPS = "components.trainer.args.mood=stops"


@pytest.fixture
def here(folder: Path) -> Path:
    (folder / "parts.py").write_text(PARTS + SAYING)
    (folder / "recipe.yaml").write_text(RECIPE.replace("parts.Trainer", "parts.Saying"))
    return folder


@pytest.mark.slow
def test_breakpoint_stops_the_worker_that_is_debugged(here: Path) -> None:
    terminal = Terminal(here, "launch", "recipe.yaml", "--debug", "two:1", STOPS)
    terminal.wait_for("(Pdb) ")
    terminal.type("p 'the answer is', answer\n")
    terminal.wait_for("('the answer is', 42)")
    terminal.wait_for("(Pdb) ")
    terminal.wait_until_shown("step 1/3")  # the launcher has read the events, and knows the worker's process
    run = RunDir(run_of(here))
    [worker] = [
        int(event.value["pid"])
        for event in Follower(run.events).new()
        if (event.name, event.group, event.rank) == ("started", "two", 1)
    ]
    terminal.type("\x03", worker)
    terminal.wait_for("(Pdb) ")
    terminal.type("c\n")
    assert terminal.end() == 0, terminal.shown
    assert "done after 3 steps" in terminal.shown
    log = run.log("two", 0).read_text()
    assert "breakpoint() is skipped: it needs launch --debug two:0" in log and "in step 3" in log
    assert output_of(run.log("two", 1)).startswith("meshctl: the output is on /dev/")


@pytest.mark.slow
def test_a_debugger_that_is_left_ends_the_run(here: Path) -> None:
    terminal = Terminal(here, "launch", "recipe.yaml", "--debug", "two:1", STOPS)
    terminal.wait_for("(Pdb) ")
    terminal.type("q\n")
    assert terminal.end() == 5
    assert "error: two:1 failed in stage sum, step 2: the debugger was left" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_nothing_but_a_terminal_can_be_given_to_a_worker(here: Path) -> None:
    done = meshctl(here, "launch", "recipe.yaml", "--debug", "two:1")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "error: --debug needs a terminal as standard input and output\n"
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--follow", "two:2"], "--follow: the rank `two:2` does not exist: `two` has 2 workers, from 0 on"),
        (
            ["--debug", "two:first"],
            "--debug: the rank `two:first` does not exist: `two` has 2 workers, from 0 on",
        ),
        (
            ["--dry-run", "--follow", "one:"],
            "--follow: the rank `one:` does not exist: `one` has 1 worker, from 0 on",
        ),
    ],
)
def test_workers_that_do_not_exist(here: Path, words: list[str], message: str) -> None:
    done = meshctl(here, "launch", "recipe.yaml", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.slow
def test_a_rank_is_followed_to_its_last_line(here: Path) -> None:
    done = meshctl(here, "launch", "recipe.yaml", "--follow", "two:1", "run.steps=40")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("two:1: ")] == [
        "two:1: the model of rank 1",
        *(f"two:1: in step {step}" for step in range(1, 41)),
    ]
    assert "two:0: the model of rank 0" in lines and lines.count("two:0: in step 40") == 1
