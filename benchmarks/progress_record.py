"""Measures the CPU time of the progress record in a worker, for each collective, each stage and each step.

    python benchmarks/progress_record.py [--rounds 7] [--count 20000]

It calls what a worker calls (`runtime.progress`), in one process and with a record in shared memory, without
the operations themselves. A step has one stage and `CALLS` collectives of one process group; writing its
`step` event with and without them gives the cost of the event. Each figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch

from meshctl.run.events import Journal, StepReport
from meshctl.run.progress import RECORD_BYTES, Activity
from meshctl.runtime.progress import Progress

GOAL_US = 20.0
"""The highest CPU time of the progress record in a step of a worker."""
CALLS = 4
"""The number of collectives in a step."""
FORM = ("all_reduce", "sum", torch.float32, 1024)


class Worker:
    """The calls of a worker's loop that write the record."""

    def __init__(self, folder: Path) -> None:
        self._progress = Progress(memoryview(mmap.mmap(-1, RECORD_BYTES)))
        self._calls = self._progress.calls_of("actor:dp")
        self._journal = Journal(folder / "train-0.jsonl", "train", 0)
        self._step = 0

    def collective(self) -> None:
        with self._calls.call(FORM):
            pass

    def stage(self) -> None:
        for activity in (Activity.RECEIVING, Activity.CALLING, Activity.SENDING):
            self._progress.enter(activity, 0, perf_counter())

    def step(self) -> None:
        """A whole step, and its event."""
        self._step += 1
        self._progress.begin_step(self._step)
        self.stage()
        for _ in range(CALLS):
            self.collective()
        self._write(StepReport(self._step, collectives=self._progress.end_step()))

    def bare_step(self) -> None:
        """The event of a step without a record."""
        self._step += 1
        self._write(StepReport(self._step))

    def _write(self, report: StepReport) -> None:
        report.stages["update"] = report.waits["update"] = 1e-3
        self._journal.write_step(report)


def microseconds(call: Callable[[], None], count: int) -> float:
    begin = process_time()
    for _ in range(count):
        call()
    return (process_time() - begin) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=20000, help="calls in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder))
        cases = {
            "collective": worker.collective,
            "stage": worker.stage,
            "step": worker.step,
            "step without a record": worker.bare_step,
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(args.rounds + 1):
            for name, call in cases.items():
                found[name].append(microseconds(call, args.count))
    median = {name: statistics.median(rounds[1:]) for name, rounds in found.items()}
    print(f"{'microseconds of CPU':<24} {'median':>8} {'slowest':>8}")
    for name, rounds in found.items():
        print(f"{name:<24} {median[name]:>8.2f} {max(rounds[1:]):>8.2f}")
    value = median["step"] - median["step without a record"]
    parts = ("collective", "stage")
    others = [{"what": f"microseconds a {name}", "value": round(median[name], 2)} for name in parts]
    what = f"microseconds of CPU a step with {CALLS} collectives"
    case = {"what": what, "value": round(value, 2), "goal": GOAL_US, "ok": value <= GOAL_US}
    print(json.dumps({"name": "progress_record", **case, "load": os.getloadavg()[0], "others": others}))


if __name__ == "__main__":
    main()
