"""The small recipe that the tests of `launch` run: one group makes batches, another sums them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.run.metrics import Row, read
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
        if self.mood in ("raises", "raises_late") and self.rank == 1 and self.step == 2:
            while self.mood == "raises_late" and '"step":1,' not in self.rows():
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


PATIENT = "run.grace=600"
"""A run has ended in order before that time, however busy the machine is."""


class Launch(subprocess.Popen[str]):
    def __exit__(self, kind: type[BaseException] | None, *further: Any) -> None:
        """Waits for the end. A test that fails ends the launch, which could go on for hours."""
        if kind is not None and self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        super().__exit__(kind, *further)


def started(folder: Path, *words: str, code: str = MAIN) -> subprocess.Popen[str]:
    """Starts a launch in a new process group, so that a test can signal the whole group as a terminal
    does. `code` is executed."""
    command = [sys.executable, "-c", code, "launch", *words]
    return Launch(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def run_of(folder: Path) -> Path:
    (run,) = folder.glob("runs/small/*")
    return run


def wait_for_processes(folder: Path) -> None:
    """Waits until no other process has this working directory. All processes of a launch have it, and so has git,
    for which a launch does not wait: it writes into the run directory."""
    while _is_working_directory(folder):
        time.sleep(0.01)


def _is_working_directory(folder: Path) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if process.name != str(os.getpid()) and (process / "cwd").readlink() == folder:
                return True
    return False


def rows(run: Path) -> list[Row]:
    """Returns the rows of a run's metrics, without their times."""
    found = read(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "time"} for row in found]


def steps(run: Path) -> list[int]:
    return [row["step"] for row in rows(run)]
