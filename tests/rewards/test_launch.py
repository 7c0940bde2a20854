"""Rewards in a real run: a sample without a reward is dropped and reported, and a reward that always fails ends
the run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import meshctl

pytestmark = pytest.mark.slow

MINE = """
from meshctl import Batch, Component, endpoint

class Answers(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"response": [str(number) for number in samples]})

class Pairs(Component):
    @endpoint
    def repeated(self, batch: Batch) -> Batch:
        return batch.repeat(2)

class Sink(Component):
    @endpoint(collect="sum")
    def take(self, batch: Batch) -> dict[str, float]:
        for id, reward in zip(batch.ids.tolist(), batch["rewards"].tolist()):
            print("seen", id, reward, flush=True)
        return {"samples": len(batch)}
"""
SCORES = """
import os

def reward(response):
    if response == "3":
        os._exit(9)
    if response == "5":
        raise ValueError("five")
    return int(response)

def broken(response):
    raise ValueError(f"no reward for {response}")
"""
RECIPE = """
name: rewards
groups:
  rollout: {ranks: 1, device_type: cpu}
  judge: {ranks: 2, device_type: cpu}
components:
  answers: {_target_: mine.Answers, group: rollout}
  pairs: {_target_: mine.Pairs, group: rollout}
  judge: {_target_: meshctl.rewards.Function, group: judge, args: {function: scores.reward, timeout_s: 600}}
  sink: {_target_: mine.Sink, group: rollout}
pipeline:
  batch: {call: answers.next, samples: 8}
  rollouts: {call: pairs.repeated, in: batch}
  scored: {call: judge.score, in: rollouts}
  out: {call: sink.take, in: scored}
run: {steps: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "scores.py").write_text(SCORES)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def test_samples_without_a_reward_are_dropped_and_reported(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    [run] = folder.glob("runs/rewards/*-*")
    first, second = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert (first["scored.failed"], second["scored.failed"]) == (4, 0)
    assert (first["out.samples"], second["out.samples"]) == (12, 16)
    assert first["scored.reward"] == pytest.approx((0 + 1 + 2 + 4 + 6 + 7) / 6)
    log = (run / "logs" / "rollout" / "0.log").read_text()
    assert "seen [2, 1] 2.0" in log and "seen [3, " not in log and "seen [8, 0] 8.0" in log
    logs = "".join((run / "logs" / "judge" / f"{rank}.log").read_text() for rank in range(2))
    assert "step 1, sample 3.1: ended its process, which ended with exit code 9" in logs
    assert "step 1, sample 5.0: `scores.reward` raised ValueError: five (scores.py:8)" in logs


def test_a_reward_that_always_fails_ends_the_run(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "components.judge.args.function=scores.broken")
    assert done.returncode == 5
    reason = (
        r"step 1: all 8 samples failed: sample (0|4)\.0: `scores.broken` raised ValueError: no reward for"
    )
    assert re.search(reason, done.stderr) and "Traceback" not in done.stderr
