"""The collect ranks of a mesh of 524,288 ranks: dp 4096 x tp 8 x pp 16.

    python benchmarks/collect_ranks.py [--rounds 20]

Each round makes a new mesh, so that nothing is cached. The producer ranks of a route, which are the same
ranks, are measured as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT

GOAL = 5.0
"""In milliseconds."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"{'dp 4096 x tp 8 x pp 16':<24} {'milliseconds':>12} {'goal':>6}")
    cases = {
        "collect_ranks": DeviceMesh.collect_ranks,
        "producer_ranks": lambda mesh: COLLECT["flatten"].producers.ranks(mesh),
    }
    took = {
        name: statistics.median(milliseconds(find) for _ in range(rounds)) for name, find in cases.items()
    }
    for name, median in took.items():
        print(f"{name:<24} {median:>12.2f} {GOAL if name == 'collect_ranks' else '':>6}")
    value = took["collect_ranks"]
    print(json.dumps({"name": "collect_ranks", "value": round(value, 3), "goal": GOAL, "ok": value <= GOAL}))


def milliseconds(find: Callable[[DeviceMesh], tuple[int, ...]]) -> float:
    """Returns the time of one question to a new mesh, in milliseconds."""
    begin = time.perf_counter()
    ranks = find(DeviceMesh.from_sizes(dp_size=4096, tp_size=8, pp_size=16))
    took = time.perf_counter() - begin
    assert len(ranks) == 4096 and ranks[1] - ranks[0] == 8
    return took * 1e3


if __name__ == "__main__":
    main()
