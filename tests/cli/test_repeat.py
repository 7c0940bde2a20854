"""`repeat` in whole runs: an evaluation over a whole data set, and minibatch epochs as in PPO."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import rows, wait_for_processes

PARTS = """
import torch
from meshctl import Batch, Component, endpoint

class Prompts(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.tensor(list(samples)).float()})

class Questions(Prompts):
    def __len__(self) -> int:
        return 11

class Sampler(Component):
    def __init__(self) -> None:
        self.scale = 0.0

    def load_weights(self, stream) -> None:
        self.scale = sum(float(tensor) for _, tensor in stream)

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        return batch.repeat(4).with_columns(noise=torch.rand(4 * len(batch)))

    @endpoint
    def answer(self, batch: Batch) -> Batch:
        return batch.with_columns(answer=batch["x"] * self.scale)

class Policy(Component):
    def __init__(self) -> None:
        self.weight = torch.zeros(())

    @endpoint
    def old(self, batch: Batch) -> Batch:
        return Batch({"old": batch["x"] + self.weight})

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        total, count = self.collective("dp").all_reduce(torch.tensor([float(batch["noise"].sum()), len(batch)]))
        self.weight = self.weight + total / count
        ratio = float((batch["old"] - batch["x"]).mean()) if len(batch) else float("nan")
        return {"ratio": ratio, "samples": float(len(batch))}

    def weights(self):
        yield "weight", self.weight

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state) -> None:
        self.weight = state["weight"]

class Judge(Component):
    @endpoint(collect="mean")
    def exam(self, batch: Batch) -> dict[str, float]:
        return {"answer": float(batch["answer"].mean()), "x": float(batch["x"].mean())}

    @endpoint(collect="sum")
    def count(self, batch: Batch) -> dict[str, float]:
        return {"n": float(len(batch))}
"""

RECIPE = """
name: small
groups:
  rollout: {ranks: 2, device_type: cpu}
  train: {ranks: 3, device_type: cpu}
components:
  prompts: {_target_: parts.Prompts, group: rollout}
  held: {_target_: parts.Questions, group: rollout}
  sampler: {_target_: parts.Sampler, group: rollout}
  judge: {_target_: parts.Judge, group: train}
  policy: {_target_: parts.Policy, group: train}
pipeline:
  batch: {call: prompts.next, samples: 8}
  rollouts: {call: sampler.sample, in: batch, samples: 32}
  ppo:
    repeat: {times: 2, over: rollouts, size: 12}
    stages:
      old: {call: policy.old, in: rollouts}
      update: {call: policy.update, in: [rollouts, old]}
  publish: {sync: policy, to: sampler}
  eval:
    every: 2
    repeat: {until: questions}
    stages:
      questions: {call: held.next, samples: 4}
      answers: {call: sampler.answer, in: questions}
      exam: {call: judge.exam, in: answers}
      count: {call: judge.count, in: answers}
run: {steps: 4, dir: runs, checkpoint: {every: 2}, show: [eval.exam.answer, ppo.update.ratio]}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeat")
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    found = meshctl(folder, "launch", "recipe.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    wait_for_processes(folder)
    (run,) = folder.glob("runs/small/*")
    return run


def test_metrics_are_over_all_passes(run: Path) -> None:
    found = rows(run)
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert all(line["ppo.update.ratio"] is not None for line in found)
    for line in found[1::2]:
        assert (line["eval.exam.x"], line["eval.count.n"]) == (5.0, 11.0) and line["eval.exam.answer"] > 0
    assert not any("eval.exam.x" in line for line in found[::2])


def test_a_run_continues_exactly_after_a_checkpoint(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(run.parents[2], folder, symlinks=True)
    [again] = folder.glob("runs/small/*")
    shutil.rmtree(again / "checkpoints" / "step-4")
    (again / "checkpoints" / "latest").unlink()
    (again / "checkpoints" / "latest").symlink_to("step-2")
    found = meshctl(folder, "launch", str(again))
    assert found.returncode == 0, found.stdout + found.stderr
    assert rows(again) == rows(run)
