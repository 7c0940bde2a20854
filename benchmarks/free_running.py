"""Rollouts of their own pace (`repeat: {take, ahead, late}`) against lockstep, and the cost of a take.

    python benchmarks/free_running.py [--rounds 3]

    speed     samples a second against lockstep with the same `max_staleness: 1`, on two ranks whose answers
              take 1 to 10 units of time; one in ten is long
    lengths   the Kolmogorov-Smirnov test of the trained lengths against those of all dealt samples
    age       the greatest age of a trained sample, against its bound
    take      the time of a take whose passes are ready, on 2 and on 16 ranks

The engine sleeps, as a device does whose steps take the same time for one answer and for many. Each round
runs both recipes, one after another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

SPEED, BOUND = 2.0, 3
TAKE_MS = {2: 0.5, 16: 5.0}
STEPS, TAKE, FIRST = 60, 16, 5
"""The steps of a run, the samples of a step, and the first step that counts."""

PARTS = """
import asyncio
import json
import time
from random import Random

import torch
from meshctl import Batch, Component, endpoint


def length(number):
    chosen = Random(number)
    return chosen.uniform(5, 10) if chosen.random() < 0.1 else chosen.uniform(0.5, 1.5)


class Numbers(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"n": torch.tensor(list(samples))})


class Engine(Component):
    def __init__(self, unit_s):
        self.unit_s = unit_s

    @endpoint
    async def sample(self, batch: Batch) -> Batch:
        await asyncio.gather(*(asyncio.sleep(self.unit_s * length(int(n))) for n in batch["n"]))
        return batch.with_columns(length=torch.tensor([length(int(n)) for n in batch["n"]]))

    def load_weights(self, stream):
        list(stream)


class Trainer(Component):
    def __init__(self, seconds):
        self.seconds, self.weight = seconds, torch.nn.Parameter(torch.zeros(8))

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        time.sleep(self.seconds)
        with open(self.run_dir / "trained.jsonl", "a") as file:
            print(json.dumps(batch["n"].tolist()), file=file)
        return {"samples": float(len(batch))}

    def weights(self):
        yield "weight", self.weight.detach()
"""

RECIPE = """
groups:
  roll: {{ranks: {ranks}, device_type: cpu}}
  train: {{ranks: 1, device_type: cpu}}
components:
  numbers: {{_target_: parts.Numbers, group: roll}}
  engine: {{_target_: parts.Engine, group: roll, args: {{unit_s: {unit}}}}}
  trainer: {{_target_: parts.Trainer, group: train, args: {{seconds: {seconds}}}}}
pipeline:
{flow}
  update: {{call: trainer.update, in: {last}}}
  publish: {{sync: trainer, to: engine, max_staleness: 1}}
run: {{steps: {steps}, dir: runs}}
"""
LOCKSTEP = f"""  batch: {{call: numbers.next, samples: {TAKE}, ends_run: false}}
  answers: {{call: engine.sample, in: batch}}"""
FREE = f"""  free:
    repeat: {{take: {TAKE}, ahead: 2, late: 1}}
    stages:
      batch: {{call: numbers.next}}
      answers: {{call: engine.sample, in: batch}}"""


def launched(folder: Path, name: str, **values: Any) -> Path:
    """Runs a recipe and returns its run directory."""
    flow, last = (FREE, "free.answers") if values.pop("is_free") else (LOCKSTEP, "answers")
    (folder / "parts.py").write_text(PARTS)
    (folder / f"{name}.yaml").write_text(RECIPE.format(flow=flow, last=last, steps=STEPS, **values))
    command = [sys.executable, "-m", "meshctl", "launch", f"{name}.yaml"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return max((folder / "runs" / name).glob("*-*"))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def speed_of(run: Path) -> float:
    """Returns samples a second."""
    rows = [row for row in rows_of(run) if row["step"] >= FIRST]
    return (len(rows) - 1) * TAKE / (rows[-1]["time"] - rows[0]["time"])


def length(number: int) -> float:
    chosen = Random(number)
    return chosen.uniform(5, 10) if chosen.random() < 0.1 else chosen.uniform(0.5, 1.5)


def p_of(one: list[float], other: list[float]) -> float:
    """Returns the probability of a greater Kolmogorov-Smirnov statistic (asymptotic, two samples)."""
    values = sorted({*one, *other})
    share = [[sum(x <= value for x in some) / len(some) for value in values] for some in (one, other)]
    greatest = max(abs(a - b) for a, b in zip(*share, strict=True))
    scale = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    factor = 2 * (scale * greatest) ** 2
    found = 2 * sum((-1) ** (k - 1) * math.exp(-factor * k * k) for k in range(1, 101))
    return 1.0 if greatest < 1e-9 else min(1.0, max(0.0, found))


def take_ms(folder: Path, ranks: int) -> float:
    """Returns the median time of a take in milliseconds, while the trainer is slower, from when all ranks are
    there: that of the rank that comes last."""
    run = launched(folder, f"take{ranks}", is_free=True, ranks=ranks, unit=0, seconds=0.1)
    seconds: dict[int, float] = {}
    for rank in range(ranks):
        for line in (run / "events" / f"roll-{rank}.jsonl").read_text().splitlines():
            if (event := json.loads(line))["name"] == "step":
                own = event["value"]["stages"]["free.answers"]
                seconds[event["step"]] = min(own, seconds.get(event["step"], own))
    return 1000 * statistics.median(one for step, one in seconds.items() if step > FIRST)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds, ratios, p, age = parser.parse_args().rounds, list[float](), 1.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(rounds):
            values = {"ranks": 2, "unit": 0.02, "seconds": 0.005}
            lock = launched(folder, f"lock{number}", is_free=False, **values)
            free = launched(folder, f"free{number}", is_free=True, **values)
            ratios.append(speed_of(free) / speed_of(lock))
            trained = [
                n for line in (free / "trained.jsonl").read_text().splitlines() for n in json.loads(line)
            ]
            p = min(
                p, p_of([length(n) for n in trained[: len(trained) // 2]], [length(n) for n in range(2000)])
            )
            age = max(age, *(row["free.answers.age_max"] for row in rows_of(free)))
        takes = {ranks: take_ms(folder, ranks) for ranks in TAKE_MS}
    speed = statistics.median(ratios)
    table = [
        ("samples a second against lockstep", f"{speed:.2f} x", f"at least {SPEED} x", speed >= SPEED),
        ("lengths of the first half that is trained, KS p", f"{p:.2f}", "above 0.05", p > 0.05),
        ("greatest age in steps", f"{age:g}", f"at most {BOUND}", age <= BOUND),
        *(
            (f"a take whose passes are ready, {ranks} ranks", f"{found:.2f} ms", f"{TAKE_MS[ranks]} ms",
             found <= TAKE_MS[ranks])
            for ranks, found in takes.items()
        ),
    ]  # fmt: skip
    for what, found, goal, ok in table:
        print(f"{what:50}  {found:>9}  {goal:>14}  {'yes' if ok else 'no'}")
    is_ok = all(ok for *_, ok in table)
    print(json.dumps({"name": "free_running", "value": round(speed, 3), "goal": SPEED, "ok": is_ok}))


if __name__ == "__main__":
    main()
