"""Several attempts in one launcher, with the same node processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from processes import Launch, alive, family, plan_of, rows_of, wait

from meshctl.engines.node.forkserver import TITLE
from meshctl.plan.model import Restarts

ONCE = Restarts(1)


def test_a_second_attempt_uses_the_same_node_process(launch: Launch, tmp_path: Path) -> None:
    """The node process, which has imported torch once, is the parent of the workers of both attempts."""
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 1), restarts=ONCE), "one:1 raise first")
    assert run.end() == 0, run.output()
    assert [event.value["attempt"] for event in run.events("launched")] == [0, 1]
    assert [event.step for event in run.events("resumed")] == [1]
    assert len(run.events("started")) == 6
    parents = {event.value["parent"] for event in run.events("ready")}
    assert len(parents) == 1
    assert [row["step"] for row in rows_of(run.run)] == [1, 2, 3]
    [restarted] = run.events("restarted")
    assert (restarted.step, restarted.value["attempt"], restarted.value["left"]) == (1, 1, 0)
    assert [event.value["code"] for event in run.events("over")] == [0]


@pytest.mark.parametrize(
    ("times", "mode", "causes", "line", "why"),
    [
        (
            *(1, "one:1 segfault", ["killed by SIGSEGV"]),
            "one:1 failed: killed by SIGSEGV after step 1\nFatal Python error: Segmentation fault",
            "`run.restarts` allows 1 restart within 1h",
        ),
        (
            *(5, "one:1 raise", ["ValueError: boom"]),
            "one:1 failed in stage sum, step 2: ValueError: boom\nTraceback: boom\nlog: ",
            "the same exception was raised in the same step before",
        ),
        (1, "one:1 early", [], "one:1 failed: ImportError: no such thing", "it failed before step 1"),
    ],
)
def test_restarts_come_to_an_end(
    launch: Launch, tmp_path: Path, times: int, mode: str, causes: list[str], line: str, why: str
) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), restarts=Restarts(times)), mode)
    assert run.end() == 5 and run.output().startswith(f"error: {line}"), run.output()
    assert run.output().count("error: one") == 1
    assert [event.value["attempt"] for event in run.events("launched")] == [*range(len(causes) + 1)]
    restarted = [event.value for event in run.events("restarted")]
    assert [value["left"] for value in restarted] == [*range(times - 1, times - 1 - len(causes), -1)]
    assert all(cause in value["cause"] for cause, value in zip(causes, restarted, strict=True))
    assert [event.value["text"] for event in run.events("warning")] == [
        f"the run does not start again: {why}"
    ]


def test_rows_of_lost_steps_are_kept_apart(launch: Launch, tmp_path: Path) -> None:
    """Without a checkpoint the second attempt starts from the beginning."""
    plan = plan_of(tmp_path, ("one", 2), checkpoint=None, restarts=ONCE)
    run = launch(plan, "one:1 raise first losses=5,4,3")
    assert run.end() == 0, run.output()
    assert [row["step"] for row in rows_of(run.run)] == [1, 2, 3]
    lost = [json.loads(line) for line in run.run.lost_metrics.read_text().splitlines()]
    assert [(row["step"], row["attempt"], row["eval.loss"]) for row in lost] == [(1, 0, 5.0)]


def test_a_node_that_is_lost_is_started_again(launch: Launch, tmp_path: Path) -> None:
    """By exec: as on another node, it ends with its connection to the launcher."""
    run = launch(plan_of(tmp_path, ("one", 2), restarts=ONCE), "forever").ready(2)
    workers = [run.pid_of("one", rank) for rank in (0, 1)]
    os.kill(run.named(TITLE), signal.SIGKILL)
    wait(lambda: len(run.events("launched")) == 2, "another attempt")
    assert not any(map(alive, workers))
    run.ready(4)
    processes = family(run.pid)
    run.send(signal.SIGKILL)
    wait(lambda: not any(map(alive, processes)), "the end of all processes")
    assert run.end() is None
