"""How far two groups of equal stages work at the same time, where the weights may be one step old.

    python benchmarks/overlap.py [--steps 60] [--rounds 3]

A sampler and a trainer, in groups of their own, that sleep equally long; the trainer's weights go back to the
sampler after each step. With `max_staleness: 0` each waits for the other, with 1 they overlap. Both are
started by `meshctl launch`, in turns; time is taken from the end of step 10 to that of the last one. Of every
sample the trainer says how old the weights were that made it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GOAL = 1.8
WARM = 10
"""Steps before the clock starts."""

PARTS = """
import time

import torch

from meshctl import Batch, Component, endpoint

SLEEP = {sleep}


class Sampler(Component):
    def setup(self):
        self.weight = torch.zeros(1024)

    def weights(self):
        yield "weight", self.weight

    def load_weights(self, stream):
        for _, tensor in stream:
            self.weight.copy_(tensor)

    @endpoint
    def sample(self, samples: range) -> Batch:
        time.sleep(SLEEP)
        return Batch({{"x": torch.randn(len(samples), 16), "made_by": self.weight[:1].repeat(len(samples))}})


class Trainer(Component):
    def setup(self):
        self.weight = torch.zeros(1024)

    def weights(self):
        yield "weight", self.weight

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        told = self.step - 1 - batch["@version"].float()
        true = self.step - 1 - batch["made_by"]
        time.sleep(SLEEP)
        self.weight += 1  # after step k, it is k
        return {{"told": float(told.max()), "least": float(true.min()), "most": float(true.max())}}
"""

RECIPE = """
name: overlap
groups:
  one: {{ranks: 1, device_type: cpu}}
  two: {{ranks: 1, device_type: cpu}}
components:
  sampler: {{_target_: parts.Sampler, group: one}}
  trainer: {{_target_: parts.Trainer, group: two}}
pipeline:
  rollouts: {{call: sampler.sample, samples: 8}}
  age: {{call: trainer.update, in: rollouts}}
  publish: {{sync: trainer, to: sampler, max_staleness: {staleness}}}
run: {{steps: {steps}, dir: runs}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleep", type=float, default=0.05, help="seconds of each stage")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pairs = [
        tuple(launched(staleness, args.steps, args.sleep) for staleness in (0, 1)) for _ in range(args.rounds)
    ]
    strict, stale = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(
        f"{'max_staleness 0':>16} {'1':>10} {'ratio':>7} {'goal':>6}      milliseconds a step; each "
        f"stage sleeps {args.sleep * 1e3:g}"
    )
    print(f"{strict * 1e3:>16.1f} {stale * 1e3:>10.1f} {ratio:>7.2f} {GOAL:>6}")
    print(
        json.dumps(
            {
                "name": "overlap",
                "value": round(ratio, 3),
                "goal": GOAL,
                "ok": ratio >= GOAL,
                "load": os.getloadavg()[0],
            }
        )
    )


def launched(staleness: int, steps: int, sleep: float) -> float:
    """Seconds of a step; leaves the benchmark where the weights were older, or newer, than they should have
    been."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(PARTS.format(sleep=sleep))
        (folder / "recipe.yaml").write_text(RECIPE.format(staleness=staleness, steps=steps))
        done = subprocess.run(
            [sys.executable, "-m", "meshctl", "launch", "recipe.yaml"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(done.stderr)
        events = [
            json.loads(line)
            for path in folder.glob("runs/*/*/events/*.jsonl")
            for line in path.read_text().splitlines()
        ]
    check_age(
        staleness,
        [(event["step"], event["value"]["values"]) for event in events if event["name"] == "metric"],
        steps,
    )
    ends: dict[int, float] = {
        step: max(event["time"] for event in events if event["name"] == "step" and event["step"] == step)
        for step in (WARM, steps)
    }
    return (ends[steps] - ends[WARM]) / (steps - WARM)


def check_age(staleness: int, ages: list[tuple[int, dict[str, float]]], steps: int) -> None:
    """How many updates the weights of every sample lacked: as many as were allowed, as soon as there were so
    many."""
    if sorted(step for step, _ in ages) != [*range(1, steps + 1)]:
        sys.exit("not every step told the age of its weights")
    for step, age in ages:
        if set(age.values()) != {min(staleness, step - 1)}:
            sys.exit(f"max_staleness {staleness}, step {step}: {age}")


if __name__ == "__main__":
    main()
