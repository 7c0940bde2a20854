"""If any process dies, all processes end, nothing is left, and the first cause is named."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Launch, Launched, alive, family, litter, plan_of, wait

from meshctl.engines.node.forkserver import TITLE

Act = Callable[[Launched], object]


def gone(pids: list[int]) -> None:
    wait(lambda: not any(map(alive, pids)), f"the end of {[pid for pid in pids if alive(pid)]}")


def signalled(*titles: str, by: signal.Signals = signal.SIGKILL) -> Act:
    """Signals processes, given by the names that `ps` shows; empty for the launcher."""

    def act(run: Launched) -> None:
        for pid in [run.named(title) if title else run.pid for title in titles]:
            os.kill(pid, by)

    return act


def interrupted_twice(run: Launched) -> None:
    run.send(signal.SIGINT)
    wait(lambda: len(run.events("stopping")) > 0, "the first signal")
    run.send(signal.SIGTERM)


def interrupted_while_the_node_process_is_stopped(run: Launched) -> None:
    signalled(TITLE, by=signal.SIGSTOP)(run)
    interrupted_twice(run)


FAULTS: dict[str, tuple[str, Act, int | None, str]] = {
    "an agent": ("", signalled("mesh two/0"), 5, "error: the agent of two: killed by SIGKILL"),
    "the node process": ("", signalled(TITLE), 5, "error: the fork server: killed by SIGKILL"),
    "the launcher": ("children", signalled(""), None, ""),
    "the launcher and the node process": ("children", signalled("", TITLE), None, ""),
    "a worker, whose peer ignores SIGTERM, and all have children": (
        *("children two:0 stubborn", signalled("two:1"), 5),
        "error: two:1 failed: killed by SIGKILL",
    ),
    "a worker vanishes": (
        *("two:1 vanish", lambda _: None, 5),
        "error: two:1 failed: ended before the run was over, with exit code 0 after step 1",
    ),
    "a second signal, and a worker hangs": ("stubborn hang one:0", interrupted_twice, 130, ""),
    "a second signal, and the node process is stopped": (
        *("", interrupted_while_the_node_process_is_stopped, 130, ""),
    ),
}
"""Fault -> the mode of the workers, the action on the run, its exit code and its error."""


@pytest.mark.parametrize(("mode", "act", "code", "error"), FAULTS.values(), ids=FAULTS)
def test_after_a_fault_all_ends_with_its_cause(
    launch: Launch, tmp_path: Path, mode: str, act: Act, code: int | None, error: str
) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 2)), f"forever {mode}").ready(4)
    pids = family(run.pid)
    assert "children" not in mode or len(pids) == 1 + 1 + 1 + 2 + 4 + 8
    act(run)
    gone(pids)
    assert run.end() == code
    assert run.output().startswith(error) and run.output().count("error: ") == bool(error)


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
