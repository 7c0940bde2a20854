"""The time from the kill of a process to the next step, with `run.restarts`, against a new launch.

    python benchmarks/restart.py [--rounds 5]

Each round launches a run of two groups of four CPU workers with a checkpoint every two steps, kills a worker,
then an agent, then the node process, each with SIGKILL, and waits for the next step between. A launch takes
from the command to the end of step 1 on all workers, and a restart from the kill to the end of the next step
on all workers. The successor of a node process must import torch again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOALS = {"worker": 0.5, "agent": 0.5, "node process": 1.2}
"""Killed process -> the largest ratio of the times."""
WORKERS = 4
TIMEOUT_S = 120.0
POLL_S = 0.02

COMPONENTS = """
import time

import torch
from meshctl import Batch, Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        time.sleep(0.02)
        return Batch({"x": torch.ones(len(samples), 4)})


class Adder(Component):
    def setup(self):
        self.total = torch.zeros(())

    @endpoint(collect="mean")
    def add(self, batch: Batch) -> dict[str, float]:
        self.total += self.collective("dp").all_reduce(batch["x"].sum())
        return {"total": float(self.total)}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]
"""

RECIPE = f"""
name: restart
groups:
  one: {{ranks: {WORKERS}, device_type: cpu}}
  two: {{ranks: {WORKERS}, device_type: cpu}}
components:
  maker: {{_target_: parts.Maker, group: one}}
  adder: {{_target_: parts.Adder, group: two}}
pipeline:
  batch: {{call: maker.next, samples: 64}}
  total: {{call: adder.add, in: batch}}
run: {{steps: 1000000, dir: runs, checkpoint: {{every: 2}}, restarts: 100}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = [measured() for _ in range(rounds)]
    launches = [launch for launch, _ in found]
    print(f"{'killed':>14} {'launch':>9} {'restart':>9} {'ratio':>7} {'goal':>6}   all ratios")
    cases = []
    for victim, goal in GOALS.items():
        ratios = [times[victim] / launch for launch, times in found]
        ratio, seconds = statistics.median(ratios), statistics.median(times[victim] for _, times in found)
        shown = " ".join(f"{one:.2f}" for one in ratios)
        print(
            f"{victim:>14} {statistics.median(launches):>7.2f} s {seconds:>7.2f} s {ratio:>7.2f} {goal:>6}   "
            f"{shown}"
        )
        cases.append({"killed": victim, "value": round(ratio, 3), "goal": goal, "ok": ratio <= goal})
    first, *others = cases
    ok = all(case["ok"] for case in cases)
    print(json.dumps({"name": "restart", **first, "ok": ok, "others": others}))


def measured() -> tuple[float, dict[str, float]]:
    """Returns the seconds of a launch, and of a restart after the death of each kind of process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(RECIPE)
        command = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
        begin = time.time()
        launcher = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            launch, times = step_after(folder, begin) - begin, {}
            for victim in GOALS:
                wait_for_checkpoint(folder)
                pid = pid_of(folder, victim)
                killed = time.time()
                os.kill(pid, signal.SIGKILL)
                times[victim] = step_after(folder, killed) - killed
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(TIMEOUT_S)
        return launch, times


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in folder.glob("runs/*/*/events/*.jsonl")
        for line in path.read_bytes().decode().rpartition("\n")[0].splitlines()
    ]


def step_after(folder: Path, moment: float) -> float:
    """Waits until all workers have ended a step of an attempt that began after `moment`, and returns the time
    of its end."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        time.sleep(POLL_S)
        events = events_of(folder)
        begun = [event["time"] for event in events if event["name"] == "launched" and event["time"] > moment]
        first: dict[tuple[str, int], float] = {}
        for event in events:
            if event["name"] == "step" and begun and event["time"] > begun[0]:
                first.setdefault((event["group"], event["rank"]), event["time"])
        if len(first) == 2 * WORKERS:
            return max(first.values())
    sys.exit("the run has not made a step in time")


def wait_for_checkpoint(folder: Path) -> None:
    """Waits for a checkpoint of the running attempt."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        times = {
            name: max((event["time"] for event in events_of(folder) if event["name"] == name), default=0.0)
            for name in ("launched", "checkpoint")
        }
        if times["checkpoint"] > times["launched"] > 0:
            return
        time.sleep(POLL_S)
    sys.exit("the run has not written a checkpoint in time")


def pid_of(folder: Path, victim: str) -> int:
    """Returns the pid of a living process of the run."""
    started = [event["value"]["pid"] for event in events_of(folder) if event["name"] == "started"]
    worker = next(pid for pid in started if Path(f"/proc/{pid}").exists())
    if victim == "worker":
        return worker
    node = parent_of(worker)
    if victim == "node process":
        return node
    return next(pid for pid in children_of(node) if title(pid).startswith("mesh "))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


if __name__ == "__main__":
    main()
