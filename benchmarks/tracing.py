"""Measures what `run.trace` costs a worker, outside of the steps that are traced and in them.

    python benchmarks/tracing.py [--rounds 20] [--steps 500]

Two groups of two workers run empty steps (`empty_step.py`): two stages, and one number per sample between
them. Rounds of one run alternate between no trace, a trace of other steps, and a trace of these steps, in the
same workers and with their whole loop and journal. The CPU time of the busiest worker counts, and the median
over rounds of its ratio to the round without a trace. A worker writes its spans at the end of each step,
which is part of the cost of a span.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.distributed import PrefixStore

from benchmarks.worlds import Driver, End, World, plan_of
from meshctl.run.events import Journal
from meshctl.run.settings import Trace
from meshctl.run.shutdown import StopAgreement
from meshctl.run.trace_file import WorkerTrace
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.loop import Loop
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.progress import Progress
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.trace import Tracer
from meshctl.runtime.world import Handshake

OUTSIDE_GOAL = 1.02
"""CPU time of a step that is not traced, of that in a run without a trace, at most."""
SPAN_GOAL_US = 10.0
"""Microseconds of CPU time for each span, at most."""
KINDS = ("without", "outside", "inside")
WIDTH = 2
"""Workers of each group."""


class Turn:
    """A worker's position in its rounds. It waits for the driver before the first step of each, when it gets
    another tracer, and answers after the last."""

    def __init__(self, driver: Driver, steps: int, folder: Path) -> None:
        self._driver, self._steps, self._folder, self._done = driver, steps, folder, 0
        self._begin = self._cpu = 0.0
        self._spans = 0
        self.context: LoopContext | None = None

    def begin(self) -> None:
        place = self._done % self._steps
        if place == 0:
            self._driver.asked()
            self._change_tracer(KINDS[self._done // self._steps % len(KINDS)])
        if place == 2:  # the tracer has begun
            self._begin, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self._done += 1
        if not self._done % self._steps:
            steps = self._steps - 3
            seconds, cpu = time.perf_counter() - self._begin, time.process_time() - self._cpu
            self._driver.answer(seconds / steps, cpu / steps)

    def _change_tracer(self, kind: str) -> None:
        """Gives the loop another tracer, from the next step on."""
        context, first = self.context, self._done + 2
        assert context is not None
        settings = Trace((first, self._done + self._steps) if kind == "inside" else (1, 1))
        path = self._folder / "trace" / f"{context.group}-{context.rank}.jsonl"
        profile = path.with_suffix(".profile.json")
        tracer = Tracer()
        if kind != "without":
            tracer = Tracer(context.plan.stages, settings, path, profile, 0, 0)
        context.progress.trace = context.transport.trace = tracer


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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500, help="of a round")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cpu, spans = measured(args.rounds, args.steps)
    print(f"{'microseconds of CPU a step':<28} {'median':>8} {'slowest':>8}")
    for kind, times in cpu.items():
        name = "no trace" if kind == "without" else f"{kind} of a trace"
        print(f"{name:<28} {statistics.median(times):>8.1f} {max(times):>8.1f}")
    pairs = list(zip(cpu["without"], cpu["outside"], cpu["inside"], strict=True))
    ratio = statistics.median(outside / without for without, outside, _ in pairs)
    each = statistics.median((inside - without) / spans for without, _, inside in pairs)
    print(f"{spans:.1f} spans a step, {each:.2f} microseconds each")
    first = {"what": "CPU of a step outside", "value": round(ratio, 3), "goal": OUTSIDE_GOAL}
    other = {"what": "microseconds of CPU a span", "value": round(each, 2), "goal": SPAN_GOAL_US}
    ok = [ratio <= OUTSIDE_GOAL, each <= SPAN_GOAL_US]
    more = {"load": os.getloadavg()[0], "others": [{**other, "ok": ok[1]}]}
    print(json.dumps({"name": "tracing", **first, "ok": all(ok), **more}))


def measured(rounds: int, steps: int) -> tuple[dict[str, list[float]], float]:
    """Returns the microseconds of CPU time of the busiest worker in a step, for each round of each kind, and
    the largest number of spans of a worker in a step. The first round of each is dropped."""
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        total = steps * (rounds + 1) * len(KINDS)
        plan = plan_of(WIDTH, WIDTH, samples=WIDTH, steps=total)
        world = World(plan, lambda end: run(end, folder, steps))
        stack.callback(world.close)
        for _ in range(rounds + 1):
            for kind in KINDS:
                _, _, used = world.steps(steps)
                cpu[kind].append(max(used) * 1e6)
        spans = max(spans_of(path, range(1, total + 1)) for path in folder.glob("trace/*.jsonl"))
    return {kind: times[1:] for kind, times in cpu.items()}, spans


def spans_of(path: Path, steps: range) -> float:
    """Returns the mean number of spans of a worker in a step."""
    trace = WorkerTrace(path, steps)
    return statistics.mean(len(trace.read(step)) for step in list(trace.attempts)[:100])


def run(end: End, folder: Path, steps: int) -> None:
    """A worker's whole run, as `meshctl.runtime.worker` runs it."""
    turn = Turn(end.driver, steps, folder)
    component = (Maker if end.gives else Consumer)(turn)
    store, listener, progress = end.connect(), end.connect(), Progress()
    transport = Handshake(end.plan, end.job_rank, store, progress=progress).connect()
    stores = PrefixStore("ending", store), PrefixStore("ending", listener)
    [placed] = end.plan.components_of(end.group)
    component._context = RankContext(placed.name, placed.mesh.at(end.rank), end.rank)
    journal = Journal(folder / "events" / f"{end.group}-{end.rank}.jsonl", end.group, end.rank)
    turn.context = LoopContext(
        end.plan,
        end.group,
        end.rank,
        {placed.name: component},
        transport,
        StopAgreement(*stores, end.job_rank),
        journal,
        progress=progress,
    )
    loop = Loop(turn.context)
    end.driver.answer(0)
    loop.run()
    transport.close()


if __name__ == "__main__":
    main()
