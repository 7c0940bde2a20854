"""How much asynchronous checkpoints lengthen training: two of 1 GiB within a minute.

    python benchmarks/checkpoint_async.py [--rounds 2] [--workers 1] [--mib 1024] [--stretch 9]

A group of workers trains without a pause, on one core each, and holds a state of `--mib` in all. The steps
of a run are divided into pairs of equal stretches: a checkpoint is cut before the first one, and is on the
disk before its end, which is checked; the second one is without. The difference of their times is what a
checkpoint costs, and it is compared with half a minute. The first pair warms up, because it allocates the
memory of the copy.

With one worker on two cores a core is free for writing, as it is beside training on a GPU. With `--workers 2`
no core is free. The CPU time of the training thread, and that of the whole worker, are reported as well: on a
busy machine only these can be compared.
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

from meshctl.run.events import Event, Follower

GOAL = 1.05
"""The mean step with two checkpoints in a minute, against that without."""
INTERVAL_S = 30.0
POLL_S = 0.5
STEP_S = 0.02

COMPONENTS = """
from time import perf_counter, process_time, thread_time

import torch
from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"n": torch.tensor(samples)})


class Learner(Component):
    def __init__(self, mib: int, step_seconds: float) -> None:
        self._count, self._seconds = mib << 18, step_seconds

    def setup(self):
        own = self._count // self.mesh.world_size
        self.parts = {f"{self.rank}.{n}": torch.ones(own // 16) for n in range(16)}
        self.x = torch.randn(256, 256)
        begin = perf_counter()
        for _ in range(50):
            self.x = torch.tanh(self.x @ self.x)
        self.repeats = max(1, round(self._seconds / ((perf_counter() - begin) / 50)))
        self.times = (self.run_dir / f"times-{self.rank}").open("w")

    @endpoint(collect="first")
    def update(self, batch: Batch) -> dict[str, float]:
        print(perf_counter(), thread_time(), process_time(), file=self.times, flush=True)
        for _ in range(self.repeats):
            self.x = torch.tanh(self.x @ self.x)
        return {"x": float(self.x[0, 0])}

    def state_dict(self):
        return dict(self.parts)

    def load_state_dict(self, state):
        self.parts = state
"""

RECIPE = """
name: async
groups:
  train: {{ranks: {workers}, device_type: cpu}}
components:
  source: {{_target_: parts.Source, group: train}}
  learner: {{_target_: parts.Learner, group: train, args: {{mib: {mib}, step_seconds: {step}}}}}
pipeline:
  batch: {{call: source.next, samples: {workers}}}
  update: {{call: learner.update, in: batch}}
run: {{steps: {steps}, dir: runs, checkpoint: {{every: {every}, keep: 1, async: true}}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument(
        "--stretch", type=float, default=9.0, help="seconds of a stretch, more on a busy machine"
    )
    args = parser.parse_args()
    stretch = round(args.stretch / STEP_S)
    with tempfile.TemporaryDirectory() as name:
        run, events = launched(Path(name), args, stretch)
        times = [times_of(run / f"times-{rank}") for rank in range(args.workers)]
    print(f"{'pair':<8} {'copied s':>9} {'written s':>10} {'cost s':>8} {'of training':>12} {'CPU s':>8}")
    costs, is_late = [], False
    for number in range(1, args.rounds + 2):
        step = 2 * stretch * number
        copied, written = (longest(events, kind, step) for kind in ("saving", "saved"))
        cost, own, cpu = (cost_of(times, clock, step, stretch) for clock in range(3))
        label = "warm-up" if number == 1 else str(number)
        print(f"{label:<8} {copied:>9.2f} {written:>10.2f} {cost:>8.2f} {own:>12.2f} {cpu:>8.2f}")
        if written >= stretch_seconds(times, step, stretch):
            is_late = True
            print("it was still in flight in the second stretch: choose a longer --stretch")
        if number > 1:
            costs.append((cost, own, cpu))
    wall, own, cpu = (1 + statistics.median(each) / INTERVAL_S for each in zip(*costs, strict=True))
    others = [
        {"what": "CPU of training", "value": round(own, 4)},
        {"what": "all CPU", "value": round(cpu, 4)},
    ]
    result = {
        "value": round(wall, 4),
        "goal": GOAL,
        "ok": wall <= GOAL and not is_late,
        "workers": args.workers,
    }
    print(json.dumps({"name": "checkpoint_async", **result, "load": os.getloadavg()[0], "others": others}))


def launched(folder: Path, args: argparse.Namespace, stretch: int) -> tuple[Path, list[Event]]:
    """Runs the recipe and returns the run directory, and the events about checkpoints, which are not kept
    for long. A checkpoint is cut every two stretches."""
    steps = 2 * stretch * (args.rounds + 2)
    numbers = {"workers": args.workers, "mib": args.mib, "step": STEP_S, "steps": steps, "every": 2 * stretch}
    (folder / "parts.py").write_text(COMPONENTS)
    (folder / "recipe.yaml").write_text(RECIPE.format(**numbers))
    command = [sys.executable, "-m", "meshctl", "launch", "recipe.yaml"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    events: list[Event] = []
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out)
        while not (folders := list(folder.glob("runs/async/*/events"))) and process.poll() is None:
            time.sleep(POLL_S)
        follower = Follower(folders[0]) if folders else None
        while follower and (process.poll() is None or not events):
            time.sleep(POLL_S)
            events += [event for event in follower.new() if event.name in ("saving", "saved")]
    if process.wait():
        sys.exit((folder / "out").read_text())
    return folders[0].parent, events


Times = list[list[tuple[float, ...]]]
"""By worker and step: its begin, by the clock, and by the CPU time of training and of the process."""


def times_of(path: Path) -> list[tuple[float, ...]]:
    return [tuple(map(float, line.split())) for line in path.read_text().splitlines()]


def cost_of(times: Times, clock: int, step: int, stretch: int) -> float:
    """Returns how much longer the stretch after the checkpoint of a step takes than the one after that, on
    the worker where this is most."""
    cut = step - 1  # the index of the step with the cut, which lies before the next one
    return max(
        2 * begins[cut + stretch][clock] - begins[cut][clock] - begins[cut + 2 * stretch][clock]
        for begins in times
    )


def stretch_seconds(times: Times, step: int, stretch: int) -> float:
    return min(begins[step - 1 + stretch][0] - begins[step - 1][0] for begins in times)


def longest(events: list[Event], name: str, step: int) -> float:
    return max(event.value["seconds"] for event in events if (event.name, event.step) == (name, step))


if __name__ == "__main__":
    main()
