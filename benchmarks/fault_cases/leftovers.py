"""Cases that count the leftovers of runs: processes, temporary files, shared memory and sockets."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.fault_cases.case import FORK_SERVER, Case, Failed, Measured, Place, Running, wait

LAUNCHES = 20
PROCESSES = 8 + 2 * 16
"""The launcher, the node process, two agents, four workers, and the grandchildren."""
VICTIMS = ("two:1", "one:0", "mesh two/0", FORK_SERVER, "launcher")


def grandchildren(place: Place, act: Callable[[Running], None], code: int | None) -> Measured:
    """Two workers have 16 grandchildren each, some of them in sessions of their own."""
    run = place.launch(fault="one:0 5 have_children;two:1 5 have_children")
    run.until(lambda: len(run.processes()) >= PROCESSES, "all grandchildren", 60.0)
    moment = time.monotonic()
    act(run)
    found = place.died(run, moment, code=code, limit=5.0)
    left = sorted(Path(path).name for path in place.litter())
    return Measured(f"{found.text}; files left: {left or 'none'}", found.ok)


def kill_launcher(run: Running) -> None:
    run.process.kill()


def interrupt(run: Running) -> None:
    run.process.send_signal(signal.SIGTERM)


def launched_and_killed(place: Place, rounds: int = LAUNCHES, seed: int = 0) -> Measured:
    """Launches runs in a row and kills a process of each at a generated moment."""
    chosen, before = random.Random(seed), shared()
    for number in range(rounds):
        run = place.launch("run.checkpoint.every=3", f"run.dir=runs-{number}")
        killed(run, chosen)
        run.gone_after(time.monotonic())
        run.end()
        if left := place.litter():
            return Measured(f"round {number} leaves {sorted(left)}", False)
    try:
        wait(lambda: not shared() - before, "an empty /dev/shm", 10.0)
    except Failed:
        return Measured(f"left in /dev/shm: {sorted(shared() - before)}", False)
    return Measured(f"{rounds} rounds, nothing left", True)


def killed(run: Running, chosen: random.Random) -> None:
    """Kills a process of a run at a generated moment; the launcher if the chosen one is not there."""
    victim, seconds = chosen.choice(VICTIMS), chosen.uniform(0.3, 4.0)
    end = time.monotonic() + seconds
    while time.monotonic() < end and run.process.poll() is None:
        time.sleep(0.02)
    try:
        pid = run.process.pid if victim == "launcher" else run.pid_now(victim)
        os.kill(pid or run.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def shared() -> set[str]:
    """Returns the entries of /dev/shm that torch, Python or meshctl may have made."""
    marks = ("torch", "meshctl", "psm_", "pymp", "sem.")
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(marks)}


CASES = [
    Case(
        26,
        "data loaders, and a worker is killed",
        "all gone, no `pymp-*` folder",
        partial(grandchildren, act=lambda run: run.kill("two:1"), code=5),
    ),
    Case(
        26,
        "data loaders, and meshctl is killed",
        "all gone, no `pymp-*` folder",
        partial(grandchildren, act=kill_launcher, code=None),
    ),
    Case(
        26,
        "data loaders, and SIGTERM",
        "all gone, no `pymp-*` folder",
        partial(grandchildren, act=interrupt, code=143),
    ),
    Case(
        27, f"{LAUNCHES} launches in a row, a process of each is killed", "nothing left", launched_and_killed
    ),
]
