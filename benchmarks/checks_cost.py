"""What the checks of a run cost: CPU time of a step with `run.checks: all`, against `basic`.

    python benchmarks/checks_cost.py [--rounds 5]

Two producers send a batch to two tp peers of another group, which return a number. The whole loop of a worker
runs. `all` takes digests of the batch before and after the call and compares the values of the peers. The CPU
time of the busiest worker counts; both sides alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.empty_step import Turn, run
from benchmarks.worlds import End, World, plan_of
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint

ROWS = 256
GOAL_MS_PER_MIB = 0.5
"""Milliseconds of CPU time that `all` may add to a step for each MiB that a worker receives."""
CASES = {"4 KiB": (16, 400), "1 MiB": (4 << 10, 100), "16 MiB": (64 << 10, 20)}
"""Bytes of a batch -> bytes of a row, and the steps of a round."""


class Maker(Component):
    def __init__(self, turn: Turn, row: int) -> None:
        self._turn, self._row = turn, row

    @endpoint
    def next(self, samples: range) -> Batch:
        self._turn.begin()
        batch = Batch({"x": torch.ones(len(samples), self._row // 8, dtype=torch.int64)})
        self._turn.end()
        return batch


class Consumer(Component):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @endpoint(collect="mean")
    def take(self, batch: Batch) -> dict[str, float]:
        self._turn.begin()
        self._turn.end()
        return {"count": float(len(batch))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'a step of':<10} {'basic us':>10} {'all us':>10} {'all / basic':>12}")
    added = {}
    for name, (row, steps) in CASES.items():
        basic, checked = cpu_of(row, steps, args.rounds)
        added[name] = (checked - basic) / 1e3
        print(f"{name:<10} {basic:>10.1f} {checked:>10.1f} {checked / basic:>12.2f}")
    name = list(CASES)[-1]
    mib = ROWS * CASES[name][0] / (1 << 20)
    value = added[name] / mib
    cases = [{"what": f"added ms for {name}", "value": round(added[name], 3)} for name in added]
    what = "milliseconds added for a MiB"
    result = {"what": what, "value": round(value, 3), "goal": GOAL_MS_PER_MIB, "ok": value <= GOAL_MS_PER_MIB}
    print(json.dumps({"name": "checks_cost", **result, "others": cases}))


def cpu_of(row: int, steps: int, rounds: int) -> tuple[float, float]:
    """Returns the microseconds of CPU time of a step with `basic` and with `all`, medians over rounds."""
    with ExitStack() as stack:
        worlds = [world_of(stack, row, steps, rounds, checks) for checks in ("basic", "all")]
        used: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for world, found in zip(worlds, used, strict=True):
                _, _, cpu = world.steps(steps)
                if number:  # the first round warms up
                    found.append(max(cpu) * 1e6)
        return statistics.median(used[0]), statistics.median(used[1])


def world_of(stack: ExitStack, row: int, steps: int, rounds: int, checks: str) -> World:
    plan = plan_of(2, 1, replicas=2, samples=ROWS, steps=steps * (rounds + 1))
    plan = replace(plan, run=replace(plan.run, checks=checks))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def begin(end: End) -> None:
        turn = Turn(end.driver, steps)
        run(end, folder, Maker(turn, row) if end.gives else Consumer(turn))

    world = World(plan, begin)
    stack.callback(world.close)
    return world


if __name__ == "__main__":
    main()
