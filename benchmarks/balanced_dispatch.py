"""What `balance: tokens` adds to a step of 4 -> 2 ranks with ragged columns.

    python benchmarks/balanced_dispatch.py [--rounds 9] [--mib 32]

Two sets of real processes take turns, driven from here: one dispatches evenly, the other by tokens. A time is
that of the slowest worker's own loop; the ratio is the median of the ratios of the rounds.

    256 samples                          at most 1.2 times the even step
    32,768 samples in groups of 8        at most 2 times the even step
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.worlds import End, Step, World, meshctl, plan_of
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.modes import Dispatch

MIB = 1 << 20
PRODUCERS, CONSUMERS = 4, 2
DROPPED_ROUNDS = 2
WARM_STEPS = 12
STEPS_PER_ROUND = 5
TOKEN_BYTES = 12
"""Bytes of one token in all columns: int64 and float32."""


@dataclass(frozen=True)
class Case:
    samples: int
    group_size: int
    goal: float

    def __str__(self) -> str:
        groups = f" in groups of {self.group_size}" if self.group_size > 1 else ""
        return f"{self.samples:,} samples{groups}"


CASES = (Case(256, 1, 1.2), Case(32_768, 8, 2.0))


def made(case: Case, nbytes: int, rank: int, producers: int) -> Batch:
    """A producer's even share of ragged samples with log-normal lengths, `nbytes` in all."""
    drawn = torch.empty(case.samples).log_normal_(0, 0.8, generator=torch.Generator().manual_seed(0))
    lengths = (drawn / drawn.sum() * (nbytes // TOKEN_BYTES)).long() + 1
    each = case.samples // producers
    lengths = lengths[rank * each : (rank + 1) * each]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    numbers = torch.arange(rank * each, (rank + 1) * each)
    ids = numbers[:, None]
    if case.group_size > 1:
        ids = torch.stack([numbers // case.group_size, numbers % case.group_size], 1)
    tokens = numbers.repeat_interleave(lengths)
    columns = {"tokens": Ragged(tokens, offsets), "logp": Ragged(tokens.float(), offsets)}
    return Batch(columns, ids=ids, group_depth=int(case.group_size > 1))


class Consumer:
    """Checks the first batch that it receives: every token is the number of its sample."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._is_checked = False

    def __call__(self, batch: Batch) -> int:
        tokens = batch["tokens"]
        assert isinstance(tokens, Ragged)
        if not self._is_checked:
            ids, size = batch.ids, self._case.group_size
            numbers = ids[:, 0] * size + ids[:, 1] if size > 1 else ids[:, 0]
            if not torch.equal(tokens.values, numbers.repeat_interleave(tokens.lengths)):
                raise ValueError("other samples than were sent")
            self._is_checked = True
        return tokens.values.numel()


def begin(case: Case, nbytes: int, end: End) -> Step:
    return meshctl(end, partial(made, case, nbytes), Consumer(case))


def measured(case: Case, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step, a median for each round, of the even and the balanced dispatch."""
    with ExitStack() as stack:
        worlds: dict[str, World] = {}
        for name, dispatch in (("even", Dispatch()), ("balanced", Dispatch(balance="tokens"))):
            plan = plan_of(PRODUCERS, CONSUMERS, dispatch=dispatch, samples=case.samples)
            world = worlds[name] = World(plan, partial(begin, case, nbytes))
            stack.callback(world.close)
            _, _, tokens = world.steps(WARM_STEPS)
            if name == "balanced" and max(tokens[PRODUCERS:]) > 1.01 * sum(tokens[PRODUCERS:]) / CONSUMERS:
                raise SystemExit(f"tokens are not balanced: {tokens[PRODUCERS:]}")
        found: dict[str, list[float]] = {name: [] for name in worlds}
        for number in range(DROPPED_ROUNDS + rounds):
            for name, world in worlds.items():
                seconds = [world.steps()[1] for _ in range(STEPS_PER_ROUND)]
                if number >= DROPPED_ROUNDS:
                    found[name].append(statistics.median(seconds))
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=float, default=32, help="bytes of all samples together, in MiB")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    cases = []
    print(f"{'4 -> 2 ranks, ragged':<36} {'even, ms':>10} {'balanced, ms':>13} {'ratio':>7} {'goal':>6}")
    for case in CASES:
        found = measured(case, int(args.mib * MIB), args.rounds)
        ratios = [one / other for one, other in zip(found["balanced"], found["even"], strict=True)]
        ratio = statistics.median(ratios)
        even, balanced = (statistics.median(found[name]) * 1e3 for name in ("even", "balanced"))
        print(f"{case!s:<36} {even:>10.2f} {balanced:>13.2f} {ratio:>7.2f} {case.goal:>6}", flush=True)
        cases.append({"what": str(case), "value": round(ratio, 3), "goal": case.goal})
    worst, *others = sorted(cases, key=lambda case: case["goal"] / case["value"])
    ok = all(case["value"] <= case["goal"] for case in cases)
    print(
        json.dumps(
            {"name": "balanced_dispatch", **worst, "ok": ok, "load": os.getloadavg()[0], "others": others}
        )
    )


if __name__ == "__main__":
    main()
