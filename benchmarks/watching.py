"""Measures the commands that show a run from another process, on a run of 64 workers and a million events.

    python benchmarks/watching.py [--workers 64] [--events 1000000] [--rounds 5] [--seconds 30] [--runs 1000]

The run directory is made by the writers of meshctl: `Journal` for the events of each worker, the rows of
metrics, and the observer that keeps `state.json`. `status` and `watch` are then started as a user does, and
measured until their first picture is there: time, CPU time, and the peak of memory. The run counts as one
that goes on, so `watch` on a terminal of 80 columns stays, and its CPU time is measured while the run makes a
step a second. `runs` lists many copies of the state. Medians of several rounds count.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.overhead import COMPONENTS, cpu_seconds, recipe
from meshctl.cli.load import plan_of
from meshctl.plan.model import Plan
from meshctl.run import clock
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.events import Event, Journal, StepReport
from meshctl.trackers.jsonl import JsonLines
from meshctl.view.live.state_file import StateFile

GOALS = {"seconds": 0.5, "megabytes": 200.0, "percent": 2.0}
METRICS = 8
TIMEOUT_S = 60.0
CALL = """
import json, resource, subprocess, sys, time
began = time.monotonic()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
cpu, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "cpu": cpu, "megabytes": megabytes}))
"""
"""Calls a command from a small process: the memory of a process counts from its fork on."""
MESHCTL = str(Path(sys.executable).with_name("meshctl"))


class MadeRun:
    """A run directory with many events, whose launcher is this process."""

    def __init__(self, folder: Path, workers: int) -> None:
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(recipe(workers, 10**6))
        loaded = plan_of(str(folder / "recipe.yaml"), [])
        self.plan: Plan = loaded.plan
        self.run = RunDir.create(folder / "runs", "overhead", "20260102-030405")
        write_whole(self.run.recipe, loaded.composed)
        write_whole(self.run.plan, self.plan.to_json())
        self.run.write_start(Start(loaded.path))
        self.run.metrics.touch()
        self._step = self.events = 0
        self.prepare()
        self._journals = {
            (group.name, rank): Journal(self.run.journal(f"{group.name}-{rank}"), group.name, rank)
            for group in self.plan.groups
            for rank in range(group.workers)
        }
        self._state, self._rows = StateFile(self.plan, self.run), JsonLines(self.run)
        for view in (self._state, self._rows):
            view.on_attempt(0, None)
        self._launcher = Journal(self.run.journal("launcher"))
        self._launcher.write("launched", attempt=0)
        self._began = clock.now()
        self._state.on_event(Event("launched", time=self._began))
        for (group, rank), journal in self._journals.items():
            for name in ("started", "ready"):
                journal.write(name, step=0)
                self._state.on_event(Event(name, group, rank, 0, time=clock.now()))
                self.events += 1

    def prepare(self) -> None:
        """Called before the first event is written."""

    def step(self) -> None:
        """Writes the events and the row of a step, and folds them into the state."""
        self._step += 1
        for (group, rank), journal in self._journals.items():
            stage = "batch" if group == "one" else "total"
            report = StepReport(self._step, seconds=1.0, stages={stage: 0.5}, waits={stage: 0.1})
            journal.write_step(report)
            value = {"seconds": 1.0, "stages": report.stages, "waits": report.waits, "routes": {}}
            self._state.on_event(Event("step", group, rank, self._step, value=value, time=clock.now()))
            self.events += 1
        self.write_row()

    def write_row(self) -> None:
        row = {"step": self._step, "time": clock.now() - self._began}
        row |= {f"total.metric_{number}": 1.0 / (self._step + number) for number in range(METRICS)}
        for view in (self._state, self._rows):
            view.on_row(row)

    def end(self) -> None:
        self._state.on_end(0, "")
        self._rows.on_end(0, "")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Makes a step a second meanwhile."""
        over = threading.Event()

        def steps() -> None:
            while not over.wait(1.0):
                self.step()

        thread = threading.Thread(target=steps)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass(frozen=True)
class Measured:
    """A command until its first picture."""

    seconds: float
    cpu: float
    megabytes: float


def measured(folder: Path, *words: str) -> Measured:
    """Runs a command that ends by itself."""
    command = [sys.executable, "-I", "-S", "-c", CALL, MESHCTL, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout))


@contextmanager
def watching(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Starts `watch` on a terminal, and yields the process and the other end of the terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
    process = subprocess.Popen(
        [MESHCTL, "watch"], cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.terminate()
        process.wait()
        os.close(ours)


def first_picture(folder: Path) -> Measured:
    """Measures `watch` until a line with the step is on the terminal."""
    began = time.monotonic()
    with watching(folder) as (process, terminal):
        read_until(terminal, rb"step \d+/")
        seconds = time.monotonic() - began
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak
        return Measured(seconds, cpu_seconds(process.pid), int(peak[1]) / 1024)


def read_until(terminal: int, pattern: bytes) -> None:
    text, end = b"", time.monotonic() + TIMEOUT_S
    while not re.search(pattern, text):
        if time.monotonic() > end:
            sys.exit(f"no picture in time: {text!r}")
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 1 << 16)


def live_percent(folder: Path, seconds: float) -> float:
    """Returns the CPU time of a view that stays, in percent of a core, after its first picture."""
    with watching(folder) as (process, terminal):
        read_until(terminal, rb"step \d+/")
        before, began = cpu_seconds(process.pid), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            if select.select([terminal], [], [], 0.2)[0]:
                os.read(terminal, 1 << 16)
        return 100 * (cpu_seconds(process.pid) - before) / passed


def copies(folder: Path, run: RunDir, count: int) -> Path:
    """Returns a folder with so many runs that have the state of a run."""
    for number in range(count):
        path = folder / "many" / f"recipe-{number % 10}" / f"20260101-{number:06}"
        path.mkdir(parents=True)
        for file in (run.recipe, run.plan, run.start, run.state):
            shutil.copy(file, path / file.name)
    return folder / "many"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=1000, help="runs in the list of `runs`")
    args = parser.parse_args()
    found: dict[str, list[Measured]] = {"status": [], "watch": [], "runs": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = MadeRun(folder, args.workers)
        while made.events < args.events:
            made.step()
        time.sleep(2)  # until the state is written
        print(
            f"{made.events} events of {args.workers} workers; {made.run.state.stat().st_size} bytes of state"
        )
        for _ in range(args.rounds):
            found["status"].append(measured(folder, "status"))
            found["watch"].append(first_picture(folder))
        with made.going_on():
            percent = live_percent(folder, args.seconds)
        made.end()
        many = copies(folder, made.run, args.runs)
        found["runs"] = [measured(folder, "runs", str(many)) for _ in range(args.rounds)]
    report(found, percent)


def report(found: dict[str, list[Measured]], percent: float) -> None:
    cases = []
    for what, rounds in found.items():
        seconds = statistics.median(one.seconds for one in rounds)
        cpu = statistics.median(one.cpu for one in rounds)
        megabytes = max(one.megabytes for one in rounds)
        ok = seconds <= GOALS["seconds"] and megabytes <= GOALS["megabytes"]
        goal = {"value": round(seconds, 3), "goal": GOALS["seconds"], "ok": ok}
        cases.append({"what": what, **goal, "cpu": round(cpu, 3), "megabytes": round(megabytes, 1)})
    live = {"value": round(percent, 2), "goal": GOALS["percent"], "ok": percent <= GOALS["percent"]}
    cases.append({"what": "live view, percent of a core", **live})
    print(f"{'first picture':<30} {'s':>8} {'goal':>6} {'CPU s':>8} {'MB':>8}")
    for case in cases:
        more = f" {case['cpu']:>8} {case['megabytes']:>8}" if "cpu" in case else ""
        print(f"{case['what']:<30} {case['value']:>8} {case['goal']:>6}{more}")
    first, *others = cases
    ok = all(case["ok"] for case in cases)
    print(json.dumps({"name": "watching", **first, "ok": ok, "others": others}))


if __name__ == "__main__":
    main()
