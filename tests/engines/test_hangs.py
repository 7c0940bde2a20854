"""Workers and processes that really hang: who holds up the run is named, with its stack."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from meshctl.run.events import Event
from tests.command_server import Started
from tests.engines.processes import Start, alive, events_of, family, name_of, wait, written

pytestmark = [pytest.mark.slow, pytest.mark.slow_suite]

PARTS = """
import time
import torch
import torch.distributed as dist
from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint()
    def next(self, samples):
        return Batch({"x": torch.ones(len(samples))})


class Actor(Component):
    def __init__(self, how=""):
        self.how = how

    def hang(self):
        while self.how == "loop":
            pass
        if self.how in ("sleep", "torch"):
            time.sleep(1000)

    @endpoint(collect="mean")
    def update(self, batch: Batch):
        is_culprit = self.step == 4 and self.rank == 1
        if is_culprit:
            self.hang()
        if self.how == "torch" or (self.how == "circle" and not (self.rank == 1 and self.step >= 4)):
            dist.all_reduce(torch.ones(1))
        elif self.how == "circle":
            pass
        elif self.how == "slow":
            time.sleep(0.1 * self.rank)
            self.collective("dp").all_reduce(torch.ones(4))
        elif not (is_culprit and self.how == "skip"):
            self.collective("dp").all_reduce(torch.ones(4))
        time.sleep(0.01)
        return {"loss": 1.0}
"""
RECIPE = """
name: hang
groups:
  rollout: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: rollout}
  actor: {_target_: parts.Actor, group: train, args: {how: ''}}
pipeline:
  batch: {call: source.next, samples: 4}
  metrics: {call: actor.update, in: batch}
run: {steps: 100000, grace: 1}
"""
SOON = "from meshctl.engines.supervise import stalls; stalls.REPORT_S, stalls.FIRST_STEP_S = 1.5, 20.0"
"""Shortens the time to a report."""


class Run:
    def __init__(self, folder: Path, launch: Started) -> None:
        self.folder, self.launch = folder, launch

    def events(self, name: str) -> list[Event]:
        return events_of(self.folder, name)

    def stop(self, title: str) -> int:
        """Stops a process of the run once it has completed steps."""
        self.launch.until(r"^step ([3-9]|\d\d)")
        pid = next(pid for pid in family(self.launch.pid) if name_of(pid) == title)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def report(self) -> str:
        """Returns the first report of a stall."""
        self.launch.until("stalled for")
        return "\n".join(self.events("stall")[0].value["text"])


Hanging = Callable[..., Run]


@pytest.fixture
def hanging(tmp_path: Path, start: Start) -> Hanging:
    written(tmp_path, RECIPE, PARTS)
    return lambda *words: Run(tmp_path, start(tmp_path, "launch", "recipe.yaml", *words, program=SOON))


@pytest.mark.parametrize("how", ["sleep", "loop", "torch"])
@pytest.mark.parametrize("group", ["rollout", "train"], ids=["two groups", "one group"])
def test_an_endpoint_that_hangs_is_named_with_its_stack(hanging: Hanging, how: str, group: str) -> None:
    words = ["~groups.rollout"] if group == "train" else []
    run = hanging(
        f"components.actor.args.how={how}", f"components.source.group={group}", "run.patience=4", *words
    )
    text = run.report()
    assert "train:1 is in stage metrics, step 4 and waits for nobody" in text
    assert "train:0 waits for train:1" in text and re.search(r"parts.py:\d+ in hang\n", text)
    code, output = run.launch.end()
    assert code == 5
    assert re.search(r"error: train:1 failed in stage metrics, step 4: it has not advanced for \d s", output)
    assert (next(run.folder.glob("runs/hang/*")) / "logs" / "stalls.log").read_text().count("in hang")


def test_a_skipped_collective_is_named(hanging: Hanging) -> None:
    run = hanging("components.actor.args.how=skip")
    code, output = run.launch.end()
    assert code == 5 and "the collectives of `dp` of `actor` (ranks 0 and 1) differ in step 4" in output


def test_a_circle_of_two_groups_is_named(hanging: Hanging) -> None:
    run = hanging("components.actor.args.how=circle", "run.patience=4")
    text = run.report()
    assert "train:0, train:1 and rollout:0 wait for each other" in text
    assert "train:0 waits for train:1: collective of torch" in text and " in update" in text
    code, output = run.launch.end()
    assert code == 5 and "train:0 failed in stage metrics, step 4" in output


def test_a_slow_rank_is_named_and_goes_on(hanging: Hanging) -> None:
    run = hanging("components.actor.args.how=slow", "run.patience=4")
    run.launch.until("^warning: ")
    text = run.events("warning")[0].value["text"]
    assert re.fullmatch(
        r"train:1 is slow: stage metrics takes 1\d\d ms without collectives, and \d+ ms on its peers", text
    )
    run.launch.signal(signal.SIGINT)
    assert run.launch.end()[0] == 130 and not run.events("stall")


def test_a_stopped_worker_is_named_and_killed(hanging: Hanging) -> None:
    run = hanging("run.patience=4")
    pid = run.stop("train:1")
    text = run.report()
    assert (
        "train:1 is stopped (SIGSTOP) in stage metrics, step" in text
        and f"`kill -CONT {pid}` continues it" in text
    )
    code, output = run.launch.end()
    assert code == 5 and not alive(pid)
    assert "error: train:1 failed in stage metrics, step" in output


def test_a_worker_that_continues_is_not_ended(hanging: Hanging) -> None:
    run = hanging("run.patience=1000")
    pid = run.stop("train:1")
    run.report()
    steps = len(run.events("step"))
    os.kill(pid, signal.SIGCONT)
    wait(lambda: len(run.events("step")) > steps + 4, "more steps")


def test_a_stopped_fork_server_does_not_outlive_a_killed_launcher(hanging: Hanging) -> None:
    run = hanging()
    pid = run.stop("meshctl-fork")
    processes = family(run.launch.pid)
    run.launch.signal(signal.SIGKILL)
    wait(lambda: not any(alive(one) for one in processes), f"the end of all processes; {pid} was stopped")
