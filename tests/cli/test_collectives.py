"""A collective that one rank skips, or calls otherwise, in real processes: named, with exit code 5 and no
metrics of the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import rows, run_of, wait_for_processes

PARTS = """
import time

import torch
import torch.distributed as dist
from meshctl import Batch, Component, endpoint

class Actor(Component):
    def __init__(self, mood: str) -> None:
        self.mood = mood

    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.ones(len(samples))})

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        mood = self.mood if self.rank == 1 and self.step == 3 else ""
        dp = self.collective("dp")
        total = dp.all_reduce(batch["x"].sum())
        dp.all_reduce(torch.ones(4), "max" if mood == "op" else "sum")
        dp.broadcast(torch.ones(4))
        if mood != "last":
            dp.all_gather(torch.ones(3))  # LAST
        return {"sum": float(total)}

class Sharded(Actor):
    def setup(self) -> None:
        from torch.distributed.fsdp import fully_shard

        self.model = torch.nn.Linear(4, 4)
        fully_shard(self.model, mesh=self.torch_mesh["fsdp"])

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.model(torch.ones(len(batch), 4)).sum().backward()
        move = dist.recv if self.rank else dist.send  # these are not counted
        move(torch.ones(1), 1 - self.rank, group=self.torch_mesh["fsdp"].get_group())
        if self.rank == 0 or self.step < 3:
            with torch.no_grad():
                self.model(torch.ones(2, 4))
        return {"sum": 1.0}

class Stream(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"x": torch.ones(len(samples))}) if samples.start < 8 else None

class Stuck(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        while samples.start >= 8:
            time.sleep(0.1)
        return Batch({"x": torch.ones(len(samples))})

class Other(Component):
    @endpoint
    def use(self, batch: Batch) -> dict[str, float]:
        return {"samples": len(batch)}

    @endpoint(collect="mean")
    def sum(self) -> dict[str, float]:
        return {"sum": float(self.collective("dp").all_reduce(torch.ones(())))}
"""

RECIPE = """
name: small
groups:
  train: {ranks: 2, device_type: cpu}
components:
  actor: {_target_: parts.Actor, group: train, parallel: {dp_size: 2}, args: {mood: ""}}
pipeline:
  batch: {call: actor.next, samples: 4}
  loss: {call: actor.update, in: batch}
run: {steps: 5, dir: runs}
"""

SHARDED = [
    "components.actor._target_=parts.Sharded",
    "components.actor.parallel={fsdp_size: 2}",
    "pipeline.batch.samples=8",
]
STREAM = """
name: small
groups:
  data: {ranks: 1, device_type: cpu}
  late: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  stream: {_target_: parts.Stream, group: data}
  stuck: {_target_: parts.Stuck, group: late}
  other: {_target_: parts.Other, group: train, parallel: {dp_size: 2}}
pipeline:
  ends: {call: stream.next, samples: 4}
  batch: {call: stuck.next, samples: 4, ends_run: false}
  used: {call: other.use, in: batch, execute: first}
  summed: {call: other.sum, in: [], after: used}
run: {dir: runs}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(PARTS.splitlines(), 1) if line.endswith(f"# {mark}"))


DEVIATIONS = {
    "last": (
        [],
        [
            "`dp` of `actor` (ranks 0 and 1)",
            "rank 0 called 4, rank 1 called 3",
            f"parts.py:{line_of('LAST')}",
        ],
    ),
    "op": (
        ["run.checks=all"],
        [
            "call number 2 differs: rank 0 called `all_reduce sum float32 [4]` at parts.py:",
            "rank 1 called `all_reduce max float32 [4]` at parts.py:",
        ],
    ),
    "forward": (SHARDED, ["torch's collectives of `fsdp` of `actor` (ranks 0 and 1)"]),
}
"""The deviation of rank 1 -> the overrides, and parts of the error."""


@pytest.mark.slow
@pytest.mark.parametrize("mood", DEVIATIONS)
def test_a_rank_that_calls_something_else_is_named(mood: str, folder: Path) -> None:
    words, parts = DEVIATIONS[mood]
    done = meshctl(folder, "launch", "recipe.yaml", f"components.actor.args.mood={mood}", *words)
    assert done.returncode == 5, done.stderr
    assert [row["step"] for row in rows(run_of(folder))] == [1, 2]
    wait_for_processes(folder)
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: train: ") and "differ in step 3: " in error
    assert all(part in error for part in parts), error


@pytest.mark.slow
def test_a_stream_that_ends_leaves_no_rank_in_a_collective(folder: Path) -> None:
    """Nothing else is called in step 3: `batch` would never return, and only rank 1 would come to `summed`, which
    takes nothing of the stream."""
    (folder / "stream.yaml").write_text(STREAM)
    done = meshctl(folder, "launch", "stream.yaml")
    assert done.returncode == 0, done.stderr
    assert [row["summed.sum"] for row in rows(run_of(folder))] == [2.0, 2.0]
