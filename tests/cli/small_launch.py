"""The small recipe that the tests of `launch` run: one group makes batches, another sums them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cli.commands import MAIN

PARTS = """
import os, time
import torch
from meshctl import Batch, Component, endpoint

class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.ones(len(samples), 2)})

class Trainer(Component):
    def __init__(self, mood: str = "") -> None:
        self.mood, self.seen = mood, torch.zeros(())

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        if self.mood == "raises" and self.rank == 1 and self.step == 2:
            until = time.monotonic() + 10
            while '"step":1,' not in self.rows() and time.monotonic() < until:
                time.sleep(0.02)  # the other rank may not have ended step 1
            raise ValueError("boom")
        if self.mood == "slow":
            time.sleep(0.05)
        self.seen += len(batch)
        return {"seen": float(self.seen)}

    def rows(self) -> str:
        metrics = self.run_dir / "metrics.jsonl"
        return metrics.read_text() if metrics.exists() else ""

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

class Stranger:
    pass
"""

RECIPE = """
name: small
groups:
  one: {ranks: 1, device_type: cpu}
  two: {ranks: 2, device_type: cpu}
components:
  maker: {_target_: parts.Maker, group: one}
  trainer: {_target_: parts.Trainer, group: two, args: {mood: ""}}
pipeline:
  batch: {call: maker.next, samples: 4}
  sum: {call: trainer.update, in: batch}
run: {steps: 3, dir: runs, checkpoint: {every: 2}}
"""


class Launch(subprocess.Popen[str]):
    def __exit__(self, kind: type[BaseException] | None, *further: Any) -> None:
        """Waits for the end. A test that fails ends the launch, which could go on for hours."""
        if kind is not None and self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        super().__exit__(kind, *further)


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a launch in a new process group, so that a test can signal the whole group as a terminal
    does."""
    command = [sys.executable, "-c", MAIN, "launch", *words]
    return Launch(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def run_of(folder: Path) -> Path:
    (run,) = folder.glob("runs/small/*")
    return run


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
