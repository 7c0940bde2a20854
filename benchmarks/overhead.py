"""Measures the CPU time of watching a run: in a worker, in its observers and in the launcher.

    python benchmarks/overhead.py [--rounds 7] [--steps 3000] [--workers 64] [--seconds 20]

The worker's part is a step with one stage, one collective and one metric, without the operations themselves:
progress record, events and metrics. The observers' part is what the plain output, `metrics.jsonl` and
`state.json` take for the events of two groups of two workers, for each step; a run of 1,000 steps a second
has a thousand of these. What the launcher needs beside its observers (reading, folding into rows, watching
for hangs) is listed. Both alternate over rounds in one process, and medians count. The launcher's part is a
real run with one step a second, whose launcher is measured after its first steps.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

import torch

from meshctl.engines.supervise.cause import Causes
from meshctl.engines.supervise.collective_check import CollectiveCheck
from meshctl.engines.supervise.session import Observers
from meshctl.engines.supervise.stalls import StallWatch
from meshctl.engines.supervise.watches import Stragglers
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.event_folding import EventFolding
from meshctl.run.events import Follower, Journal, StepReport
from meshctl.run.metrics import Fold
from meshctl.run.progress import RECORD_BYTES, Activity
from meshctl.runtime.metrics.stage_metrics import MemoryUse
from meshctl.runtime.progress import Progress
from meshctl.trackers.jsonl import JsonLines
from meshctl.view.live import for_terminal
from meshctl.view.live.state_file import StateFile

GOALS = {"worker": 20.0, "observers": 5.0, "launcher": 2.0}
"""Microseconds a step; percent of a core at 1,000 steps a second; percent of a core."""
STEPS_PER_POLL = 30
"""Number of steps between two polls of the head at 1,000 steps a second."""
FORM = ("all_reduce", "sum", torch.float32, 1024)
TIMEOUT_S = 180.0

COMPONENTS = """
import time

import torch
from meshctl import Batch, Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        time.sleep(1)
        return Batch({"x": torch.ones(len(samples), 4)})


class Adder(Component):
    @endpoint(collect="mean")
    def add(self, batch: Batch) -> dict[str, float]:
        return {"total": float(self.collective("dp").all_reduce(batch["x"].sum()))}
"""


def recipe(workers: int, steps: int, folder: str = "runs") -> str:
    return f"""
name: overhead
groups:
  one: {{ranks: {workers // 2}, device_type: cpu}}
  two: {{ranks: {workers - workers // 2}, device_type: cpu}}
components:
  maker: {{_target_: parts.Maker, group: one}}
  adder: {{_target_: parts.Adder, group: two}}
pipeline:
  batch: {{call: maker.next, samples: {workers}}}
  total: {{call: adder.add, in: batch}}
run: {{steps: {steps}, dir: {folder}}}
"""


class Worker:
    """The supervision of one worker: its progress record, its events and its metrics of each step."""

    def __init__(self, run: RunDir, group: str, rank: int, stage: str, route: str = "") -> None:
        self._progress = Progress(memoryview(mmap.mmap(-1, RECORD_BYTES)))
        self._calls = self._progress.calls_of("adder:dp")
        self._journal = Journal(run.journal(f"{group}-{rank}"), group, rank)
        self._journal.write("started", pid=os.getpid())
        self._journal.write("ready", step=0, last=None, source="")
        self._stage, self._route, self._memory = stage, route, MemoryUse(self._journal)

    def step(self, number: int) -> None:
        progress, report = self._progress, StepReport(number, seconds=1e-3)
        progress.begin_step(number)
        for activity in (Activity.RECEIVING, Activity.CALLING, Activity.SENDING):
            progress.enter(activity, 0, perf_counter())
        if self._route:
            report.routes[self._route] = 4096
        else:
            with self._calls.call(FORM):
                pass
            report.add_metric(self._stage, {"total": 0.5}, 32.0, "mean")
        report.add_times(self._stage, 1e-4, 1e-3, progress.take_collective_seconds())
        report.collectives = progress.end_step()
        self._journal.write_step(report)
        self._memory.report(number, perf_counter())


class Watching:
    """The launcher's part of a run of two groups of two workers, in one process with the workers' part."""

    def __init__(self, plan: Plan, run: RunDir) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """Part -> its CPU time in the present round."""
        route = next(iter(plan.routes)).name
        self._workers = [Worker(run, "one", rank, "batch", route) for rank in range(2)]
        self._workers += [Worker(run, "two", rank, "total") for rank in range(2)]
        view, rows, state = for_terminal(plan, run, io.StringIO()), JsonLines(run), StateFile(plan, run)
        self._observers = Observers([view, rows, state])
        self._observers.on_attempt(0, None)
        self._follower, self._folding = Follower(run.events), EventFolding(run)
        self._fold = Fold({"one": 2, "two": 2}, since=time.time())
        self._causes = Causes(plan, run.log)
        self._collectives, self._stragglers = CollectiveCheck(plan, 0), Stragglers()
        self._stalls = StallWatch(plan, lambda node, processes: None, run.stalls)
        self._step = 0

    def steps(self, count: int) -> None:
        for _ in range(count // STEPS_PER_POLL):
            for _ in range(STEPS_PER_POLL):
                self._step += 1
                for worker in self._workers[:2]:
                    worker.step(self._step)
                with self._timed("worker"):
                    for worker in self._workers[2:]:
                        worker.step(self._step)
            self._poll()

    def _poll(self) -> None:
        with self._timed("reading"):
            events = list(self._follower.in_order())
        with self._timed("observers"):
            for event in events:
                self._observers.on_event(event)
        with self._timed("supervision"):
            for event in events:
                self._causes.add(event)
                self._stalls.add(event, 0.0)
                self._stragglers.add(event)
                self._collectives.add(event)
            self._causes.end_poll(0.0)
        with self._timed("rows"):
            rows = [row for event in events for row in self._fold.add(event)]
        with self._timed("observers"):
            for row in rows:
                self._observers.on_row(row)
        with self._timed("folding"):
            self._folding.poll(self._step / 1000, self._follower)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = process_time()
        yield
        self.seconds[what] += process_time() - begin


def watching(rounds: int, steps: int) -> dict[str, list[float]]:
    """Returns the microseconds of CPU of each part for a step, by round. That of a worker is for one."""
    from meshctl.cli.load import plan_of  # imports the recipe's layer

    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(recipe(4, 10**9))
        plan = plan_of(str(folder / "recipe.yaml"), []).plan
        run = RunDir.create(folder, "overhead", "now")
        watched = Watching(plan, run)
        for number in range(rounds + 1):
            watched.seconds.clear()
            watched.steps(steps)
            for what, seconds in watched.seconds.items():
                if number:
                    found[what].append(seconds / steps * 1e6 / (2 if what == "worker" else 1))
    return found


def launcher_percent(workers: int, seconds: float) -> float:
    """Returns the CPU time of the launcher of a run with one step a second, in percent of a core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(recipe(workers, 10**9))
        command = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
        launcher = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            end = time.monotonic() + TIMEOUT_S
            while rows_of(folder) < 3:
                if time.monotonic() > end or launcher.poll() is not None:
                    sys.exit("the run has not made three steps in time")
                time.sleep(0.2)
            before, began, rows = cpu_seconds(launcher.pid), time.monotonic(), rows_of(folder)
            time.sleep(seconds)
            passed = time.monotonic() - began
            used = cpu_seconds(launcher.pid) - before
            print(f"{rows_of(folder) - rows} steps of {workers} workers in {passed:.1f} s")
        finally:
            launcher.terminate()
            launcher.wait(TIMEOUT_S)
        return 100 * used / passed


def rows_of(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/*/metrics.jsonl"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3000, help="steps in a round")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = watching(args.rounds, args.steps)
    median = {what: statistics.median(rounds) for what, rounds in found.items()}
    print(f"{'microseconds of CPU a step':<28} {'median':>8} {'slowest':>8}")
    for what, rounds in found.items():
        print(f"{what:<28} {median[what]:>8.1f} {max(rounds):>8.1f}")
    values = {
        "worker": median["worker"],
        "observers": median["observers"] / 10,
        "launcher": launcher_percent(args.workers, args.seconds) if args.workers else 0.0,
    }
    cases = [
        {"what": what, "value": round(value, 2), "goal": GOALS[what], "ok": value <= GOALS[what]}
        for what, value in values.items()
    ]
    for case in cases:
        print(f"{case['what']:<28} {case['value']:>8} {case['goal']:>8}")
    first, *others = cases
    ok = all(case["ok"] for case in cases)
    parts = {what: round(value, 1) for what, value in median.items()}
    print(json.dumps({"name": "overhead", **first, "ok": ok, "others": others, "microseconds": parts}))


if __name__ == "__main__":
    main()
