"""What dispatching costs one rank as the ranks grow to 4,096: the arithmetic alone, on simulated ranks.

    python benchmarks/dispatch_scale.py [--repeats 7]

    balanced    the whole assignment by tokens that every rank computes, for 262,144 samples
    even        what one rank asks of a `slice_dp` route without balancing: O(dims), whatever the ranks

A time is CPU time, the least of the repeats: the arithmetic waits for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy

from meshctl.topology.flows import EvenFlow
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.partition import Dispatch, partition
from meshctl.topology.samples import Grid, SampleTable

SAMPLES = 262_144
RANKS = (2, 8, 64, 512, 4096)
GOAL_US_PER_SAMPLE = 0.2
GOAL_EVEN_RATIO = 2.0
"""The goal for 4,096 ranks in times of 2 ranks."""
EVEN_CALLS = 1000


def table_of(producers: int, group_size: int) -> SampleTable:
    """Log-normal lengths on even producers, as samples or in groups."""
    drawn = numpy.random.default_rng(0).lognormal(6, 0.8, SAMPLES)
    lengths = numpy.split((1 + drawn).astype(numpy.int64), producers)
    groups = SAMPLES // producers // group_size
    inner = (group_size,) if group_size > 1 else ()
    ids = tuple(Grid(producer * groups, (groups, *inner)) for producer in range(producers))
    return SampleTable(ids, tuple(lengths), group_depth=len(inner))


def least_seconds(run: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def even_seconds(ranks: int, repeats: int) -> float:
    """Returns the CPU seconds that one rank needs for its questions about an even route: its producers, its
    samples, and the shares that it supplies."""
    mesh = DeviceMesh.from_sizes(dp_size=ranks // 2, tp_size=2)
    flow = EvenFlow(mesh, mesh, SAMPLES)
    rank = ranks - 1

    def ask() -> None:
        for _ in range(EVEN_CALLS):
            flow.producers_of(rank)
            flow.span_of(rank)
            flow.shares_of(mesh.data_rank(rank))

    return least_seconds(ask, repeats) / EVEN_CALLS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"{'shares':>7} {'groups of':>10} {'balanced, ms':>13} {'us a sample':>12} {'even, us a step':>16}")
    worst, even = 0.0, {}
    for ranks in RANKS:
        even[ranks] = even_seconds(ranks, args.repeats) * 1e6
        for size in (1, 4, 8):
            table = table_of(min(ranks, 64), size)
            options = Dispatch(balance="tokens")
            seconds = least_seconds(lambda: partition(table, ranks, options), args.repeats)  # noqa: B023
            each = seconds / SAMPLES * 1e6
            worst = max(worst, each)
            print(
                f"{ranks:>7} {size:>10} {seconds * 1e3:>13.1f} {each:>12.3f} {even[ranks]:>16.1f}", flush=True
            )
    ratio = even[RANKS[-1]] / even[RANKS[0]]
    summary = {
        "name": "dispatch_scale",
        "what": f"balanced, microseconds a sample of {SAMPLES:,}, the worst of {RANKS[0]} to {RANKS[-1]} "
        "shares",
        "value": round(worst, 3),
        "goal": GOAL_US_PER_SAMPLE,
        "ok": worst <= GOAL_US_PER_SAMPLE and ratio <= GOAL_EVEN_RATIO,
        "load": os.getloadavg()[0],
        "others": [
            {
                "what": f"even, {RANKS[-1]} ranks in times of {RANKS[0]}",
                "value": round(ratio, 2),
                "goal": GOAL_EVEN_RATIO,
            }
        ],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
