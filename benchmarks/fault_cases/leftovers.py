"""Cases that count the leftovers of runs: processes, temporary files, shared memory and sockets."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.fault_cases.case import FORK_SERVER, Case, Failed, Measured, Place, Running, wait

LAUNCHES = 20
PROCESSES = 8 + 2 * 16
"""The launcher, the node process, two agents, four workers, and the grandchildren."""
LAUNCHER = "launcher"
VICTIMS = (
    ("two:1",),
    ("mesh two/0",),
    (FORK_SERVER,),
    (LAUNCHER,),
    (LAUNCHER, FORK_SERVER),
    ("meshctl-logs",),
    ("one:0", "two:0", "two:1"),
    ("mesh one/0", "mesh two/0"),
    (LAUNCHER, "meshctl-logs"),
)
"""Processes that are killed together. The launcher is killed in place of one that does not run yet."""
MOMENTS = {
    "at the start": 6.0,
    "at the start of workers": 2.0,
    "in a step": 1.0,
    "in a checkpoint": 0.2,
    "in a restart": 2.0,
}
"""Moment -> longest time between it and the kill, in seconds."""


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


def kill_launcher_and_node(run: Running) -> None:
    kill_at_once(run, (LAUNCHER, FORK_SERVER))


def interrupt(run: Running) -> None:
    run.process.send_signal(signal.SIGTERM)


def launched_and_killed(place: Place, rounds: int = LAUNCHES, seed: int = 0) -> Measured:
    """Launches runs in a row and kills processes of each at a generated moment."""
    chosen, before = random.Random(seed), shared()
    for number in range(rounds):
        folder = place.folder / str(number)
        folder.mkdir()
        if left := killed_once(Place(folder), chosen.choice(list(MOMENTS)), chosen.choice(VICTIMS), chosen):
            return Measured(f"round {number}: {left}", False)
    try:
        wait(lambda: not shared() - before, "an empty /dev/shm", 10.0)
    except Failed:
        return Measured(f"left in /dev/shm: {sorted(shared() - before)}", False)
    return Measured(f"{rounds} rounds, nothing left", True)


def killed_once(place: Place, moment: str, victims: Sequence[str], chosen: random.Random) -> str:
    """Kills processes of a run in the same moment, and the launcher later if the run goes on. Returns what is
    left; empty if nothing is."""
    run = place.launch("run.checkpoint.every=1", "run.restarts=3")
    try:
        come_to(run, moment)
        time.sleep(chosen.uniform(0.0, MOMENTS[moment]))
        kill_at_once(run, victims)
        with suppress(Failed):
            run.end(chosen.uniform(0.0, 2.0))
        run.process.kill()
        run.gone_after(time.monotonic())
    finally:
        place.close()
    left = {Path(path).name for path in place.litter()}
    left |= {entry.name for entry in place.folder.iterdir() if entry.name.startswith(".")}
    return f"{', '.join(victims)} killed {moment}: {sorted(left)}" if left else ""


def come_to(run: Running, moment: str) -> None:
    """Waits for a moment of a run. Returns earlier if the run has ended."""
    begun = {"at the start of workers": "started", "in a step": "step", "in a restart": "restarted"}
    if moment == "in a restart":
        come_to(run, "in a step")
        run.kill("two:1")
    if moment in begun:
        with suppress(Failed):
            run.until(lambda: bool(run.events(begun[moment])), moment)
    elif moment == "in a checkpoint":
        wait(lambda: any(run.folder.glob("runs/fault/*/checkpoints/*")), moment)


def kill_at_once(run: Running, victims: Sequence[str]) -> None:
    pids = [run.process.pid if victim == LAUNCHER else run.pid_now(victim) for victim in victims]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid or run.process.pid, signal.SIGKILL)


def shared() -> set[str]:
    """Returns the entries of /dev/shm that torch, Python or meshctl may have made."""
    marks = ("torch", "meshctl", "psm_", "pymp", "sem.")
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(marks)}


CASES = [
    Case(
        26,
        "a worker is killed",
        "all gone, temporary folders (`pymp-*`) too",
        partial(grandchildren, act=lambda run: run.kill("two:1"), code=5),
    ),
    Case(
        26,
        "the launcher is killed",
        "all gone, temporary folders (`pymp-*`) too",
        partial(grandchildren, act=kill_launcher, code=None),
    ),
    Case(
        26,
        "the launcher and the node process are killed",
        "all gone, temporary folders (`pymp-*`) too",
        partial(grandchildren, act=kill_launcher_and_node, code=None),
    ),
    Case(
        26,
        "SIGTERM to the launcher",
        "all gone, temporary folders (`pymp-*`) too",
        partial(grandchildren, act=interrupt, code=143),
    ),
    Case(
        27,
        f"{LAUNCHES} launches in a row, processes of each are killed",
        "nothing remains",
        launched_and_killed,
    ),
]
