"""The memory of each additional CPU worker, against that of a torchrun worker.

    python benchmarks/worker_memory.py [--rounds 3]

The memory is the PSS (a page that k processes share counts 1/k for each) of all processes of a run, with two
workers and with six. A quarter of the difference is the cost of one worker. All workers have joined a gloo
world and finished an all-reduce.
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
from collections.abc import Sequence
from pathlib import Path

GOAL = 0.3
FEWER_WORKERS, MORE_WORKERS = 2, 6
"""Workers of the two runs that are compared."""
END_S = 60.0
"""Maximum time of the end of a run."""

COMPONENTS = """
import time
import torch
import torch.distributed as dist

from meshctl import Batch, Component, endpoint


class Sleeper(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        dist.all_reduce(torch.ones(4))
        open(f"ready-{self.rank}", "w").close()
        time.sleep(1000)
"""

RECIPE = """
name: worker-memory
groups:
  one: {{ranks: {workers}, device_type: cpu}}
components:
  sleeper: {{_target_: parts.Sleeper, group: one}}
pipeline:
  batch: {{call: sleeper.next, samples: 64}}
run: {{steps: 1, dir: runs}}
"""

SCRIPT = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
open(f"ready-{os.environ['RANK']}", "w").close()
time.sleep(1000)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    launch = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node={workers}",
        "script.py",
    ]
    pairs = [(additional(torchrun), additional(launch)) for _ in range(rounds)]
    theirs, ours = (statistics.median(sizes) for sizes in zip(*pairs, strict=True))
    ratio = statistics.median(mine / bare for bare, mine in pairs)
    print(f"{'torchrun':>10} {'meshctl':>10} {'ratio':>7} {'goal':>6}")
    print(f"{theirs:>6.1f} MiB {ours:>6.1f} MiB {ratio:>7.2f} {GOAL:>6}")
    print(json.dumps({"name": "worker_memory", "value": round(ratio, 3), "goal": GOAL, "ok": ratio <= GOAL}))


def additional(command: Sequence[str]) -> float:
    """Returns the MiB of one additional worker."""
    difference = total(command, MORE_WORKERS) - total(command, FEWER_WORKERS)
    return difference / (MORE_WORKERS - FEWER_WORKERS)


def total(command: Sequence[str], workers: int) -> float:
    """Returns the MiB of a run with this number of workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "recipe.yaml").write_text(RECIPE.format(workers=workers))
        argv = [part.format(workers=workers) for part in command]
        with subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while len(list(folder.glob("ready-*"))) < workers:
                if run.poll() is not None:
                    sys.exit(f"{' '.join(argv)} ended with {run.returncode}")
                time.sleep(0.05)
            time.sleep(0.5)  # until all workers sleep
            found = sum(map(pss, descendants(run.pid)))
            for _ in range(2):  # the second signal ends meshctl at once
                run.terminate()
                time.sleep(0.3)
            run.wait(END_S)
        return found


def pss(pid: int) -> float:
    """Returns the PSS of a process in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def descendants(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    found = [pid]
    for member in found:
        for task in Path(f"/proc/{member}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


if __name__ == "__main__":
    main()
