"""The benchmark `empty_step` of the checkout in PYTHONPATH, one round for each line of standard input.

    PYTHONPATH=CHECKOUT python benchmarks/peers/empty_step_at_commit.py ROUNDS STEPS

It answers with the microseconds of CPU time of each worker in a step. Worker i of each group runs on core i,
so two checkouts are measured under equal conditions: where the scheduler moves workers between the cores, the
CPU time of one and the same checkout varies by a third. Only names are used that `empty_step` has at every
commit.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks import empty_step
from benchmarks.worlds import World

run_steps = World.steps


def steps_of_a_round(world: World, count: int = 1) -> tuple[float, float, list[Any]]:
    """Runs the steps of a round when the next line comes, and prints what each worker used."""
    pin(world.pids)
    sys.stdin.readline()
    found = run_steps(world, count)
    print(json.dumps([seconds * 1e6 for seconds in found[2]]), flush=True)
    return found


def pin(pids: list[int]) -> None:
    """Binds the workers of each group to different cores."""
    cores = sorted(os.sched_getaffinity(0))
    for number, pid in enumerate(pids):
        core = cores[number % empty_step.WIDTH % len(cores)]
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


if __name__ == "__main__":
    World.steps = steps_of_a_round  # type: ignore[method-assign]
    rounds, steps = map(int, sys.argv[1:])
    empty_step.measured(rounds - 1, steps, None)
