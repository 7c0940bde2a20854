"""If any process dies, all processes end, nothing is left, and the first cause is named."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from processes import Launch, Launched, alive, family, litter, plan_of, wait

from meshctl.engines.node.forkserver import TITLE


def gone(pids: list[int]) -> None:
    wait(lambda: not any(map(alive, pids)), f"the end of {[pid for pid in pids if alive(pid)]}")


def going(launch: Launch, folder: Path, mode: str = "forever") -> tuple[Launched, list[int]]:
    """Launches a run of two groups of two workers. Returns it with all of its processes."""
    run = launch(plan_of(folder, ("one", 2), ("two", 2)), mode).ready(4)
    return run, family(run.pid)


def test_a_worker_that_vanishes_is_named_and_ends_the_run(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 2)), "two:1 vanish forever")
    assert run.end() == 5, run.output()
    line = "error: two:1 failed: ended before the run was over, with exit code 0 after step 1"
    assert run.output().startswith(line) and run.output().count("error: two") == 1


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("mesh two/0", "error: the agent of two: killed by SIGKILL"),
        (TITLE, "error: the fork server: killed by SIGKILL"),
    ],
)
def test_a_killed_process_is_named_and_ends_the_run(
    launch: Launch, tmp_path: Path, title: str, line: str
) -> None:
    run, pids = going(launch, tmp_path)
    os.kill(run.named(title), signal.SIGKILL)
    gone(pids)
    assert run.end() == 5
    assert run.output().startswith(line)


@pytest.mark.parametrize("with_node_process", [False, True])
def test_a_killed_launcher_ends_everything(launch: Launch, tmp_path: Path, with_node_process: bool) -> None:
    run, pids = going(launch, tmp_path, "forever children")
    victims = [run.pid, run.named(TITLE)] if with_node_process else [run.pid]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    gone(pids)
    assert run.end() is None


def test_grandchildren_and_a_worker_that_ignores_sigterm_go_too(launch: Launch, tmp_path: Path) -> None:
    run, pids = going(launch, tmp_path, "forever children two:0 stubborn")
    assert len(pids) == 1 + 1 + 1 + 2 + 4 + 8
    os.kill(run.pid_of("two", 1), signal.SIGKILL)
    gone(pids)
    assert run.end() == 5
    assert run.output().startswith("error: two:1 failed: killed by SIGKILL")


def test_a_stopped_node_process_does_not_prevent_the_end(launch: Launch, tmp_path: Path) -> None:
    run, pids = going(launch, tmp_path)
    os.kill(run.named(TITLE), signal.SIGSTOP)
    run.send(signal.SIGINT)
    wait(lambda: len(run.events("stopping")) > 0, "the first signal")
    run.send(signal.SIGTERM)
    gone(pids)
    assert run.end() == 130


VICTIMS = ("launcher", TITLE, "mesh one/0", "mesh two/0", "one:0", "two:1")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 11))
def test_nothing_is_left_of_20_runs_that_are_killed(
    launch: Launch, tmp_path: Path, temporary: Path, seed: int
) -> None:
    """The workers that are ready have children, some of them in sessions of their own."""
    chosen, before = random.Random(seed), litter(temporary)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        is_early = chosen.random() < 0.3
        mode = "forever" if is_early else "forever children"
        run = launch(plan_of(folder, ("one", 2), ("two", 2)), mode, folder=folder)
        wait(lambda run=run: len(run.events("started")) == 4, "the workers")
        if not is_early:
            run.ready(4).wait_for_step(chosen.randint(1, 20))
        pids, victim = family(run.pid), chosen.choice(VICTIMS)
        os.kill(run.pid if victim == "launcher" else run.named(victim), signal.SIGKILL)
        gone(pids)
        run.end()
        assert litter(temporary) == before, f"round {number}, {victim} was killed"
