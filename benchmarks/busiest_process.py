"""How many bytes go through the busiest process in a step: counted, not timed.

    python benchmarks/busiest_process.py [--mib 64]

n ranks give a batch to n others. What a process sends and what it receives is counted where its transport
hands frames on, with tables and headers. With a central driver, all bytes come in and go out again, whatever
n is. Ranks are threads: nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from benchmarks import samples
from benchmarks.worlds import Consumer, even, plan_of
from meshctl.plan.model import Plan
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.errors import PeerLost
from tests.runtime.memory import MemoryDataPlane

RANKS = (4, 16, 64)
GOAL = 1.05
"""Times total / ranks: what is above 1 is ids, tables and headers."""


class Counting(MemoryDataPlane):
    """Counts the bytes of its place."""

    def __init__(self, job_rank: int, slots: Mapping[int, int], hub: dict[int, Any]) -> None:
        super().__init__(job_rank, slots, hub)
        self.sent = self.received = 0
        self._hub = hub

    def on_message(self, source: int, tag: int, frame: Tensor | bytes, *more: Any) -> None:
        self.received += len(frame)
        self._hub[source].sent += len(frame)
        super().on_message(source, tag, frame, *more)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    total = parser.parse_args().mib << 20
    print(f"{'ranks':>8} {'a driver':>14} {'total / ranks':>14} {'busiest':>14} {'ratio':>7} {'goal':>6}")
    cases = []
    for ranks in RANKS:
        busiest = moved(ranks, total)
        ratio = busiest / (total / ranks)
        print(
            f"{f'{ranks}->{ranks}':>8} {2 * total:>14} {total // ranks:>14} {busiest:>14} {ratio:>7.3f} "
            f"{GOAL:>6}",
            flush=True,
        )
        cases.append(
            {
                "what": f"busiest / (total / ranks), {ranks} ranks",
                "value": round(ratio, 4),
                "goal": GOAL,
                "bytes": busiest,
            }
        )
    worst, *others = sorted(cases, key=lambda case: float(case["value"]), reverse=True)
    print(
        json.dumps(
            {
                "name": "busiest_process",
                **worst,
                "ok": float(worst["value"]) <= GOAL,
                "total": total,
                "others": others,
            }
        )
    )


def moved(ranks: int, total: int) -> int:
    """Bytes that the busiest process sends or receives, whichever is more, in one step."""
    plan, hub = plan_of(ranks, ranks), dict[int, MemoryDataPlane]()
    transports = [Counting(job_rank, {}, hub) for job_rank in range(plan.job_size)]
    faults = list[Exception]()
    threads = [
        threading.Thread(target=guarded, args=(plan, transport, total, transports, faults))
        for transport in transports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return max(max(transport.sent, transport.received) for transport in transports)


def guarded(
    plan: Plan, transport: Counting, total: int, everybody: list[Counting], faults: list[Exception]
) -> None:
    try:
        step(plan, transport, total)
    except Exception as error:
        faults.append(error)
        for other in everybody:
            other.fail(PeerLost(str(error)))


def step(plan: Plan, transport: Counting, total: int) -> None:
    """One rank's part of one step."""
    group, rank = plan.group_and_rank(transport.job_rank)
    sides = [
        RouteSide(component.mesh, plan.group(component.group).first_job_rank) for component in plan.components
    ]
    channel = Channel(RouteContext(plan.routes[0], *sides, transport))
    ranks = plan.group(group).workers
    if group == "one":
        channel.send(even(total, rank, ranks), 1)
    else:
        Consumer(samples.share(rank, ranks))(channel.receive(1).value)


if __name__ == "__main__":
    main()
