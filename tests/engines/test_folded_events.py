"""A run whose old events are folded while it runs: it continues after a kill, and its report is complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.event_files import event_files
from meshctl.run.event_folding import KEPT_SEGMENTS
from meshctl.run.events import Follower, events_of
from meshctl.run.row_file import last_row, read
from tests.engines.processes import alive, family, wait

pytestmark = [pytest.mark.slow, pytest.mark.slow_suite]

PARTS = """
import torch
from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, samples):
        return Batch({"x": torch.ones(len(samples))})


class Actor(Component):
    @endpoint(collect="mean")
    def update(self, batch: Batch):
        return {"loss": float(self.collective("dp").all_reduce(batch["x"].sum()))}
"""
RECIPE = """
name: folded
groups:
  rollout: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: rollout}
  actor: {_target_: parts.Actor, group: train}
pipeline:
  batch: {call: source.next, samples: 4}
  metrics: {call: actor.update, in: batch}
run: {steps: 1000000, dir: runs, checkpoint: {every: 100}}
"""
COMMAND = (
    "from meshctl.run import event_folding, events; events.SEGMENT_BYTES = 4000; event_folding.POLL_S = 0.05;"
    "from meshctl.cli.main import main; main()"
)
"""Runs a command with small files of events."""
LAST = 2000


def launch(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "launch", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_of(folder: Path) -> dict[tuple[str, int], int]:
    """Returns the number of steps of each worker by its events, folded or not."""
    found = dict[tuple[str, int], int]()
    for event in Follower(folder).in_order():
        if event.name in ("step", "steps") and event.rank is not None:
            who = event.group, event.rank
            found[who] = found.get(who, 0) + event.value.get("count", 1)
    return found


def test_a_run_with_folded_events_continues_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    first = launch(tmp_path, "recipe.yaml")
    wait(lambda: any(tmp_path.glob("runs/*/*/events/train-1.*.folded.jsonl")), "folded events")
    wait(lambda: any(tmp_path.glob("runs/*/*/checkpoints/latest")), "a checkpoint")
    processes = family(first.pid)
    first.kill()
    wait(lambda: not any(alive(pid) for pid in processes), "the end of all processes")
    first.communicate()
    [folder] = tmp_path.glob("runs/*/*")
    run = RunDir(folder)
    row = last_row(run.metrics)
    assert row is not None and row["step"] < LAST
    second = launch(tmp_path, str(folder), f"run.steps={LAST}")
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert any(event.name == "resumed" and event.step for event in events_of(run.journal("launcher")))
    assert [row["step"] for row in read(run.metrics)] == list(range(1, LAST + 1))
    assert all(row["metrics.loss"] == 4.0 for row in read(run.metrics))
    assert min(steps_of(run.events).values()) >= LAST and len(steps_of(run.events)) == 3
    workers = [files for files in event_files(run.events) if files.who in ("rollout-0", "train-0", "train-1")]
    assert all(files.folded > 0 and len(files.segments) < 20 + KEPT_SEGMENTS for files in workers), output
