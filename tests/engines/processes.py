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

from meshctl.engines.node.termination import stat_of
from meshctl.plan.model import Checkpoint, Cluster, Group, Plan, Program, Run
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Follower
from meshctl.run.metrics import read
from tests.cli.small_launch import PARTS, RECIPE
from tests.command_server import Started, server
from tests.hang import HANG_S
from tests.log_text import without_warnings_of_torch

TIMEOUT = HANG_S
TWO = RECIPE.replace("{ranks: 1,", "{ranks: 2,").replace("run:", "cluster: {nodes: 2}\nrun:")
THREE = RECIPE.replace("ranks: 1,", "ranks: 3,").replace("ranks: 2,", "ranks: 3,")
THREE = THREE.replace("run:", "cluster: {nodes: 3}\nrun:").replace("samples: 4", "samples: 6")
"""The small recipe on two and on three nodes."""
LONG = ["components.trainer.args.mood=slow", "run.steps=100000"]
"""Overrides with which it ends only when it is asked to."""


def written(folder: Path, recipe: str, parts: str = PARTS, **modules: str) -> Path:
    """Writes a recipe and modules into a folder, and returns the folder."""
    files = {f"{name}.py": text for name, text in {"parts": parts, **modules}.items()}
    for name, text in {**files, "recipe.yaml": recipe}.items():
        (folder / name).write_text(text)
    return folder


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


def runs_in(where: RunDir | Path, name: str = "*") -> list[RunDir]:
    """Returns a run itself, or the runs of a recipe in a folder."""
    if isinstance(where, RunDir) or (where / "plan.json").exists():
        return [where if isinstance(where, RunDir) else RunDir(where)]
    return [RunDir(path) for path in where.glob(f"runs/{name}/*")]


def events_of(where: RunDir | Path, event: str, name: str = "*") -> list[Event]:
    """Returns the events with a name of a run, or of the runs in a folder, in their order."""
    found = (one for run in runs_in(where, name) for one in Follower(run.events).in_order())
    return [one for one in found if one.name == event]


def rows_of(where: RunDir | Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics of a run, or of the run in a folder, without their times, which rise."""
    rows = [row for run in runs_in(where) for row in read(run.metrics)]
    times = [row.pop("time") for row in rows]
    assert times == sorted(times)
    return rows


@dataclass
class Launched:
    folder: Path
    pid: int
    code: int | None = None
    """The exit code of the launcher once it was waited for, or the negative number of a signal."""

    @property
    def run(self) -> RunDir:
        path = self.folder / "run"
        wait(lambda: path.exists() and path.read_text() != "", "a run directory")
        return RunDir(Path(path.read_text()))

    def events(self, name: str) -> list[Event]:
        return events_of(self.run, name)

    def ready(self, workers: int) -> Launched:
        wait(lambda: len(self.events("ready")) >= workers, f"{workers} ready workers; {self.output()}")
        return self

    def last_step(self) -> int:
        """Returns the last step that some worker has completed; 0 before the first."""
        return max((event.step or 0 for event in self.events("step")), default=0)

    def wait_for_step(self, step: int) -> None:
        wait(lambda: self.last_step() >= step, f"step {step}; {self.output()}")

    def pid_of(self, group: str, rank: int, attempt: int = 0) -> int:
        found = [one for one in self.events("started") if (one.group, one.rank) == (group, rank)]
        return int(found[attempt].value["pid"])

    def named(self, title: str) -> int:
        """Returns the pid of a process of the run by the name that `ps` shows."""
        return next(pid for pid in family(self.pid) if name_of(pid) == title)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> int | None:
        """Waits for the launcher's end. Returns its exit code; None if it was killed."""
        self.code = server().wait(self.pid) if self.code is None else self.code
        return self.code if self.code >= 0 else None

    def kill(self) -> None:
        """Kills a launcher that still runs."""
        if self.code is None:
            self.send(signal.SIGKILL)
            self.end()

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
    with suppress(OSError):
        return stat_of(f"/proc/{pid}")[0] not in "ZX"
    return False


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def parent_of(pid: int) -> int:
    """Returns the parent of a process; 0 if the process has ended."""
    with suppress(OSError):
        return int(stat_of(f"/proc/{pid}")[1])
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
