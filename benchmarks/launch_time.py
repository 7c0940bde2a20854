"""The time from the command to the first pipeline step, against two concurrent torchruns with one all-reduce.

    python benchmarks/launch_time.py [--rounds 5]

Both start two groups of n CPU workers, alternately. The time of torchrun ends when the last of its 2 n
workers has finished its all-reduce. The time of meshctl ends when the last of its 2 n workers has finished
step 1, in which one group makes a batch and the other receives it and runs an all-reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS = {4: 0.4, 2: 0.6}
"""Workers per group -> the largest ratio of the times."""

COMPONENTS = """
import torch
import torch.distributed as dist

from meshctl import Batch, Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.ones(len(samples), 4)})


class Adder(Component):
    @endpoint(collect="mean")
    def add(self, batch: Batch) -> dict[str, float]:
        total = batch["x"].sum()
        dist.all_reduce(total)
        return {"total": float(total)}
"""

RECIPE = """
name: launch-time
groups:
  one: {{ranks: {workers}, device_type: cpu}}
  two: {{ranks: {workers}, device_type: cpu}}
components:
  maker: {{_target_: parts.Maker, group: one}}
  adder: {{_target_: parts.Adder, group: two}}
pipeline:
  batch: {{call: maker.next, samples: 64}}
  total: {{call: adder.add, in: batch}}
run: {{steps: 1, dir: runs}}
"""

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    file.write(str(time.time()))
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'workers':>8} {'torchrun':>10} {'meshctl':>10} {'ratio':>7} {'goal':>6}")
    cases = []
    for workers, goal in GOALS.items():
        pairs = [(torchrun(workers), meshctl(workers)) for _ in range(rounds)]
        ratio = statistics.median(ours / theirs for theirs, ours in pairs)
        theirs, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{f'2 x {workers}':>8} {theirs:>8.2f} s {ours:>8.2f} s {ratio:>7.2f} {goal:>6}", flush=True)
        cases.append(
            {"workers": f"2 x {workers}", "value": round(ratio, 3), "goal": goal, "ok": ratio <= goal}
        )
    first = cases[0]
    print(
        json.dumps(
            {"name": "launch_time", **first, "ok": all(case["ok"] for case in cases), "others": cases[1:]}
        )
    )


def torchrun(workers: int) -> float:
    """Returns the seconds until the last worker of both groups has finished its all-reduce."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={workers}",
            str(folder / "script.py"),
        ]
        begin, running = time.time(), []
        for group in ("one", "two"):
            (folder / group).mkdir()
            running.append(subprocess.Popen([*command, str(folder / group)], stderr=subprocess.DEVNULL))
        for process in running:
            if process.wait() != 0:
                sys.exit("torchrun failed")
        return (
            max(float(path.read_text()) for group in ("one", "two") for path in (folder / group).iterdir())
            - begin
        )


def meshctl(workers: int) -> float:
    """Returns the seconds until the last worker has finished step 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(RECIPE.format(workers=workers))
        command = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
        begin = time.time()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        events = [
            json.loads(line)
            for path in folder.glob("runs/*/*/events/*.jsonl")
            for line in path.read_text().splitlines()
        ]
        steps = [event["time"] for event in events if event["name"] == "step" and event["step"] == 1]
        assert len(steps) == 2 * workers
        return max(steps) - begin


if __name__ == "__main__":
    main()
