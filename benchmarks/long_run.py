"""Whether memory and descriptors stay as they are over many steps of changing sizes.

    python benchmarks/long_run.py [--steps 20000]

Two ranks give to two others in real processes, batches of up to 1 MiB, of ragged and of plain columns. What a
process holds is read between pieces of the run: PSS (a page that k processes share counts 1/k for each), RSS
and open files. The last quarter is compared with the second one, since in the first the blocks are still
growing to the largest batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.worlds import End, Step, World, moving, plan_of
from meshctl.runtime.batch.batch import Batch, Column, Ragged

GOAL = 1.02
PIECES = 40
MOST = 1 << 20
"""Bytes of the largest batch of all producers together."""
WIDTH = 2
"""Workers of each group."""


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    pss: int
    """KiB, as `rss`."""
    rss: int
    files: int

    @classmethod
    def by(cls, pid: int) -> Held:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
        return cls(sizes["Pss"], sizes["Rss"], len(os.listdir(f"/proc/{pid}/fd")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    world = World(plan_of(WIDTH, WIDTH), begin)
    held: list[list[Held]] = []
    for _ in range(PIECES):
        world.steps(steps // PIECES)
        held.append([Held.by(pid) for pid in world.pids])
    world.close()
    print(json.dumps(compared([list(process) for process in zip(*held, strict=True)], steps)))


def begin(end: End) -> Step:
    """A step whose batch differs from the one before."""
    return moving(end, Sizes(end.rank), check)


class Sizes:
    """Yields a producer's batches: its half of the samples, with sizes from a random generator that all
    producers share."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._random = random.Random(0)
        self._memory = torch.arange(MOST // WIDTH // 8)

    def __call__(self) -> Batch:
        samples = self._random.randint(1, 64)
        elements = int(len(self._memory) * 2 ** self._random.uniform(-12, 0)) // 2
        bounds = torch.tensor(
            [0, *sorted(self._random.randint(0, elements) for _ in range(samples - 1)), elements]
        )
        rows = max(1, elements // samples)
        columns: dict[str, Column] = {
            "tokens": Ragged(self._memory[:elements], bounds),
            "state": self._memory[: rows * samples].view(samples, rows),
        }
        first = self._rank * samples
        return Batch(columns, ids=torch.arange(first, first + samples))


def check(batch: Batch) -> None:
    assert len(batch["tokens"]) == len(batch["state"]) == len(batch)
    batch["tokens"].values.sum()


def compared(processes: Sequence[Sequence[Held]], steps: int) -> dict[str, object]:
    """Prints a line for each process, and gives the largest growth."""
    print(f"{'process':<10} {'PSS MiB':>16} {'RSS MiB':>16} {'ratio':>7} {'goal':>6} {'files':>12}")
    quarter = PIECES // 4
    worst, files_ok = 0.0, True
    for number, held in enumerate(processes):
        second, last = held[quarter : 2 * quarter], held[-quarter:]
        ratios = []
        shown = []
        for what in ("pss", "rss"):
            before, after = (statistics.median(getattr(one, what) for one in some) for some in (second, last))
            ratios.append(after / before)
            shown.append(f"{before / 1024:.1f} -> {after / 1024:.1f}")
        before, after = (max(one.files for one in some) for some in (second, last))
        files_ok &= after <= before
        worst = max(worst, *ratios)
        name = f"{'one' if number < WIDTH else 'two'}:{number % WIDTH}"
        files = f"{before} -> {after}"
        print(
            f"{name:<10} {shown[0]:>16} {shown[1]:>16} {max(ratios):>7.3f} {GOAL:>6} {files:>12}",
            flush=True,
        )
    ok = worst <= GOAL and files_ok
    return {
        "name": "long_run",
        "what": "memory of the last quarter / the second",
        "value": round(worst, 4),
        "goal": GOAL,
        "ok": ok,
        "steps": steps,
        "files": files_ok,
    }


if __name__ == "__main__":
    main()
