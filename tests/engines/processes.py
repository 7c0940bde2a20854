"""Runs that were launched for a test, and their living processes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshctl.plan.model import Checkpoint, Cluster, Group, Plan, Program, Run
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Follower
from tests.command_server import Started
from tests.hang import HANG_S
from tests.log_text import without_warnings_of_torch

TIMEOUT = HANG_S


def plan_of(
    folder: Path,
    *groups: tuple[str, int | Program],
    grace: float = HANG_S,
    env: tuple[tuple[str, str | None], ...] = (),
    **run_keys: Any,
) -> Plan:
    """Returns a plan of groups by name, each with this many workers, or with two workers of a program.
    `run_keys` are those of `Run`."""
    placed, place = [], 0
    for name, what in groups:
        workers = what if isinstance(what, int) else 2
        placed.append(
            Group(name, "cpu", workers, place, env=env, program=what if isinstance(what, Program) else None)
        )
        place += workers
    keys = {"steps": 3, "checkpoint": Checkpoint(), **run_keys}
    run = Run(dir=str(folder / "runs"), grace=grace, **keys)
    return Plan("test", 0, Cluster(), tuple(placed), (), (), (), run)


@dataclass
class Launched:
    folder: Path
    pid: int

    @property
    def run(self) -> RunDir:
        wait(
            lambda: (self.folder / "run").exists() and (self.folder / "run").read_text() != "",
            "a run directory",
        )
        return RunDir(Path((self.folder / "run").read_text()))

    def events(self, name: str) -> list[Event]:
        return [event for event in Follower(self.run.events).new() if event.name == name]

    def ready(self, workers: int) -> Launched:
        wait(lambda: len(self.events("ready")) >= workers, f"{workers} ready workers; {self.output()}")
        return self

    def last_step(self) -> int:
        """Returns the last step that some worker has completed; 0 before the first."""
        return max((event.step or 0 for event in self.events("step")), default=0)

    def wait_for_step(self, step: int) -> None:
        wait(lambda: self.last_step() >= step, f"step {step}; {self.output()}")

    def pid_of(self, group: str, rank: int, attempt: int = 0) -> int:
        pids = [
            int(event.value["pid"])
            for event in self.events("started")
            if (event.group, event.rank) == (group, rank)
        ]
        return pids[attempt]

    def named(self, title: str) -> int:
        """Returns the pid of a process of the run by the name that `ps` shows."""
        return next(pid for pid in family(self.pid) if name_of(pid) == title)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> int | None:
        """Waits for the launcher's end. Returns its exit code; None if it was killed."""
        wait(lambda: not alive(self.pid), f"the end of the launcher; {self.output()}")
        path = self.folder / "code"
        return int(path.read_text()) if path.exists() else None

    def output(self) -> str:
        path = self.folder / "out"
        return without_warnings_of_torch(path.read_text()) if path.exists() else ""


Launch = Callable[..., Launched]
Start = Callable[..., Started]


def wait(condition: Callable[[], bool], what: str, seconds: float = TIMEOUT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    """Returns the parent of a process; 0 if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command_lines_with_token() -> list[bytes]:
    """Returns the command lines on this machine with a word of 64 hexadecimal digits, as tokens are."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_bytes())
    return [line for line in found if re.search(rb"\b[0-9a-f]{64}\b", line)]


def family(pid: int) -> list[int]:
    """Returns a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))):
            parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found


def litter(temporary: Path) -> set[str]:
    """Returns the files that torch or a launcher may have left behind."""
    marks = ("torch", "meshctl", "psm_", "pymp")
    return {
        str(path)
        for folder in (Path("/dev/shm"), temporary)
        for path in folder.iterdir()
        if path.name.startswith(marks)
    }
