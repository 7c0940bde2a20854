"""What an empty step costs: two stages in two groups of two workers, and one number per sample between them.

    python benchmarks/empty_step.py [--rounds 7] [--steps 2000] [--peers [PYTHON]] [--baseline COMMIT]

The whole loop of a worker runs, with its journal. The CPU time of the busiest worker is compared with that of
the same benchmark at a commit of this repository: the workers of both are on the same cores, and short rounds
alternate. Seconds are taken in the workers' own loops, from the first step of a round to its last; the
slowest worker counts. They are judged only where each worker has a core. With `--peers`, the same stages over
Ray's ObjectRefs, which only Ray's driver can time, alternate with ours.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
from torch.distributed import PrefixStore

from benchmarks.peers import Peer, PeerError
from benchmarks.worlds import Driver, End, World, plan_of
from meshctl.run.events import Journal
from meshctl.run.shutdown import StopAgreement
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.loop import Loop
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.world import Handshake

BASELINE = "208765c4"
"""The commit whose CPU time is the measure."""
CPU_GOAL = 1.3
"""Of the CPU time of the baseline, at most."""
GOAL_US = 100.0
RAY_GOAL = 15.0
"""Times as fast as over Ray, at least."""
RAY_STEPS = 100
ROUNDS_PER_ROUND, SHORT_ROUND_STEPS = 4, 500
"""Rounds against the baseline for each round of `--rounds`, and the steps of one. Short rounds that alternate
see the same load of the machine."""
WIDTH = 2
"""Workers of each group."""


class Turn:
    """A worker's position in its rounds. It waits for the driver before the first step of each, and answers
    after the last."""

    def __init__(self, driver: Driver, steps: int) -> None:
        self._driver, self._steps, self._done = driver, steps, 0
        self._begin = self._cpu = 0.0

    def begin(self) -> None:
        """Before a step's work."""
        if not self._done % self._steps:
            self._driver.asked()
        if self._done % self._steps == 1:
            self._begin, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """After a step's work. The first step of a round is not timed, since it waits for the driver."""
        self._done += 1
        if not self._done % self._steps:
            steps = self._steps - 1
            self._driver.answer(
                (time.perf_counter() - self._begin) / steps, (time.process_time() - self._cpu) / steps
            )


class Maker(Component):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @endpoint
    def next(self, samples: range) -> Batch:
        self._turn.begin()
        batch = Batch({"x": torch.ones(len(samples))})
        self._turn.end()
        return batch


class Consumer(Component):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @endpoint(collect="mean")
    def take(self, batch: Batch) -> None:
        self._turn.begin()
        assert len(batch) == 1
        self._turn.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000, help="of a round")
    parser.add_argument("--peers", nargs="?", const=sys.executable, help="an interpreter that has ray")
    parser.add_argument("--baseline", default=BASELINE, help="a commit to compare with; empty for none")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ours, cpu, theirs = measured(args.rounds, args.steps, args.peers)
    print(f"{'microseconds a step':<24} {'median':>10} {'slowest round':>14}")
    for name, rounds in (("meshctl", ours), ("of that, CPU", cpu), ("Ray ObjectRefs", theirs)):
        if rounds:
            print(f"{name:<24} {statistics.median(rounds):>10.1f} {max(rounds):>14.1f}")
    cases = []
    if args.baseline and (ratio := ratio_to(args.baseline, args.rounds)):
        what = f"CPU, of that of {args.baseline}"
        cases.append({"what": what, "value": round(ratio, 3), "goal": CPU_GOAL, "ok": ratio <= CPU_GOAL})
    value, has_cores = statistics.median(ours), (os.cpu_count() or 1) >= 2 * WIDTH
    is_fast = value <= GOAL_US or not has_cores
    cases.append({"what": "microseconds", "value": round(value, 1), "goal": GOAL_US, "ok": is_fast})
    if theirs:
        times = statistics.median(one / other for one, other in zip(theirs, ours, strict=True))
        what, is_faster = "Ray's ObjectRefs, times ours", times >= RAY_GOAL
        cases.append({"what": what, "value": round(times, 1), "goal": RAY_GOAL, "ok": is_faster})
    first, *others = cases
    ok = all(case["ok"] for case in cases)
    more = {"cpu": round(statistics.median(cpu), 1), "load": os.getloadavg()[0], "others": others}
    print(json.dumps({"name": "empty_step", **first, "ok": ok, **more}))


def ratio_to(commit: str, rounds: int) -> float | None:
    """Returns the CPU time of a step, as a multiple of that at a commit: the median over rounds that
    alternate. None where the repository lacks the commit."""
    root = Path(__file__).resolve().parent.parent
    archive = subprocess.run(["git", "-C", str(root), "archive", commit], capture_output=True)
    if archive.returncode:
        print(f"no baseline: {archive.stderr.decode().strip()}")
        return None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        count = ROUNDS_PER_ROUND * rounds + 1
        sides = [stack.enter_context(Checkout(checkout, count)) for checkout in (root, Path(folder))]
        times = [[side.cpu_of_a_round() for side in sides] for _ in range(count)]
    return statistics.median(ours / theirs for ours, theirs in times[1:])


class Checkout:
    """This benchmark in a checkout, with workers that run a round when they are asked."""

    def __init__(self, root: Path, rounds: int) -> None:
        script = Path(__file__).resolve().parent / "peers" / "empty_step_at_commit.py"
        command = [sys.executable, str(script), str(rounds), str(SHORT_ROUND_STEPS)]
        environ = {**os.environ, "PYTHONPATH": str(root)}
        self._process = subprocess.Popen(
            command, cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def cpu_of_a_round(self) -> float:
        """Returns the microseconds of CPU time of the busiest worker in a step."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return max(json.loads(self._process.stdout.readline()))


def measured(rounds: int, steps: int, python: str | None) -> tuple[list[float], list[float], list[float]]:
    """Returns the microseconds of a step in each round: ours, those of the CPU, and Ray's. The first round of
    each is dropped."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        world = World(
            plan_of(WIDTH, WIDTH, samples=WIDTH, steps=steps * (rounds + 1)),
            lambda end: run(end, Path(folder), (Maker if end.gives else Consumer)(Turn(end.driver, steps))),
        )
        stack.callback(world.close)
        peer = ray(stack, python) if python else None
        ours, cpu, theirs = list[float](), list[float](), list[float]()
        for _ in range(rounds + 1):
            _, seconds, used = world.steps(steps)
            ours.append(seconds * 1e6)
            cpu.append(max(used) * 1e6)
            if peer:
                theirs.append(statistics.median(peer.steps("nothing", RAY_STEPS)) * 1e6)
    return ours[1:], cpu[1:], theirs[1:]


def ray(stack: ExitStack, python: str) -> Peer | None:
    try:
        peer = stack.enter_context(Peer("Ray", python))
        peer.open(WIDTH, WIDTH, 0)
    except PeerError as error:
        print(f"Ray is left out: {error}")
        return None
    return peer


def run(end: End, folder: Path, component: Component) -> None:
    """A worker's whole run, as `meshctl.runtime.worker` runs it."""
    store, listener = end.connect(), end.connect()
    transport = Handshake(end.plan, end.job_rank, store).connect()
    ending = StopAgreement(
        PrefixStore("ending", store),
        PrefixStore("ending", listener),
        end.job_rank,
    )
    [placed] = end.plan.components_of(end.group)
    component._context = RankContext(placed.name, placed.mesh.at(end.rank), end.rank)
    journal = Journal(folder / f"{end.group}-{end.rank}.jsonl", end.group, end.rank)
    context = LoopContext(end.plan, end.group, end.rank, {placed.name: component}, transport, ending, journal)
    loop = Loop(context)
    end.driver.answer(0)
    loop.run()
    transport.close()


if __name__ == "__main__":
    main()
