"""A case of the benchmark `faults`, and a run of `meshctl launch` to which it happens.

    run = place.launch("run.steps=10", fault="two:1 5 boom")
    run.wait_for_step(3)
    run.kill("two:1")
    return place.died(run, moment, "two:1 failed", "killed by SIGKILL")

Every process of a run has the variable `REACHED` of its launcher in its environment, whatever it has become,
so none of them can hide.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.processes import name_of

TIMEOUT_S = 120.0
POLL_S = 0.01
GONE_S = 3.0
"""The bar for the end of all processes."""
FORK_SERVER = "meshctl-fork"
RECIPE = """
name: fault
groups:
  one: {ranks: 2, device_type: cpu}
  two: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: one}
  learner: {_target_: parts.Learner, group: two, args: {mebibytes: 0.001}}
pipeline:
  batch: {call: source.next, samples: 8}
  update: {call: learner.update, in: batch}
run: {steps: 1000000, dir: runs, checkpoint: {every: 10}, grace: 2}
"""


class Failed(Exception):
    """A case could not be brought about, or waited in vain."""


class Skipped(Exception):
    """This machine cannot produce the case; the message says what it lacks."""


@dataclass(frozen=True)
class Measured:
    text: str
    ok: bool


@dataclass(frozen=True)
class Case:
    fault: int
    """Its number in the list of faults."""
    what: str
    bar: str
    measure: Callable[[Place], Measured]


@dataclass
class Running:
    """A launch that was started in the folder of a case."""

    folder: Path
    process: subprocess.Popen[bytes]
    reached: Path
    out: Path

    @property
    def output(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def path(self) -> Path:
        """The run directory."""
        wait(lambda: any(self.folder.glob("runs/fault/*")), f"a run directory; {self.output}")
        return max(self.folder.glob("runs/fault/*"))

    def events(self, *names: str) -> list[dict[str, Any]]:
        found = []
        for path in self.folder.glob("runs/fault/*/events/*.jsonl"):
            with suppress(OSError):
                found += path.read_bytes().decode().rpartition("\n")[0].splitlines()
        return [event for line in found if (event := parsed(line)) and event["name"] in names]

    def processes(self) -> list[int]:
        return list(processes_of(self.reached))

    def pid_of(self, title: str) -> int:
        """Returns the pid of a worker (GROUP:RANK), an agent (`mesh GROUP/NODE`) or the fork server."""
        self.until(lambda: self.pid_now(title) > 0, f"a process {title}")
        return self.pid_now(title)

    def pid_now(self, title: str) -> int:
        """Returns the pid of a process by its title; 0 if there is none now."""
        return next((pid for pid in self.processes() if name_of(pid) == title), 0)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = TIMEOUT_S) -> None:
        wait(lambda: condition() or self.process.poll() is not None, f"{what}; {self.output}", seconds)
        if not condition():
            raise Failed(f"the run ended before {what}: {last_line(self.output)}")

    def wait_for_step(self, step: int) -> None:
        self.until(lambda: any(event["step"] >= step for event in self.events("step")), f"step {step}")

    def wait_for(self, who: str, where: str) -> None:
        """Waits until a worker has come to a place of `FAULT`."""
        self.until(lambda: (self.reached / f"{who}-{where}").exists(), f"{who} in {where}")

    def kill(self, title: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid_of(title), number)

    def end(self, seconds: float = TIMEOUT_S) -> int:
        """Waits for the exit code of the launcher."""
        wait(lambda: self.process.poll() is not None, f"the end; {last_line(self.output)}", seconds)
        return self.process.wait()

    def gone_after(self, moment: float) -> float:
        """Waits until no process of the run is left. Returns the seconds since `moment`."""

        def is_gone() -> bool:
            self.process.poll()
            return not self.processes()

        wait(is_gone, "the end of all processes", 60.0)
        return time.monotonic() - moment

    @property
    def saved(self) -> int:
        """The step of `latest`; 0 without one."""
        latest = self.path / "checkpoints" / "latest"
        return int(os.readlink(latest).rpartition("-")[2]) if latest.is_symlink() else 0

    @property
    def rows(self) -> list[int]:
        """The steps of `metrics.jsonl`."""
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]


@dataclass
class Place:
    """A folder with a recipe, for one case."""

    folder: Path
    slack: float = 1.0
    """Factor of all bars in seconds, for a busy machine."""
    runs: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "recipe.yaml").write_text(RECIPE)
        shutil.copy(Path(__file__).with_name("parts.py"), self.folder)
        (self.folder / "tmp").mkdir()

    def launch(
        self,
        *words: str,
        fault: str = "",
        recipe: str = "recipe.yaml",
        env: Mapping[str, str | None] | None = None,
        before: Sequence[str] = (),
        **how: Any,
    ) -> Running:
        """Starts `meshctl launch`. `before` is a command that executes it. `how` are arguments of `Popen`."""
        number = len(self.runs)
        reached, out = self.folder / f"reached-{number}", self.folder / f"out-{number}"
        reached.mkdir()
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "FAULT": fault,
            "REACHED": str(reached),
            **(env or {}),
        }
        command = [*before, str(Path(sys.executable).with_name("meshctl")), "launch", recipe, *words]
        given = {name: value for name, value in environ.items() if value is not None}
        with out.open("wb") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "start_new_session": True}
            process = subprocess.Popen(command, cwd=self.folder, env=given, **{**streams, **how})
        self.runs.append(Running(self.folder, process, reached, out))
        return self.runs[-1]

    def running(self, step: int = 5, **how: Any) -> Running:
        """Returns a run that has made some steps."""
        run = self.launch(**how)
        run.wait_for_step(step)
        return run

    def died(
        self, run: Running, moment: float, *texts: str, code: int | None = 5, limit: float = GONE_S
    ) -> Measured:
        """Measures the end of a run whose fault happened at `moment`: the time until no process is left, the
        exit code, and the line of the error, which must contain `texts`. `code` is None where the launcher
        was killed."""
        seconds = run.gone_after(moment)
        found = run.end()
        line = error_line(run.output)
        ok = seconds <= limit * self.slack and all(text in line for text in texts)
        ok = ok and found == (-signal.SIGKILL if code is None else code) and not self.litter()
        return Measured(f"{seconds:.1f} s, exit {found}: {line}", ok)

    def litter(self) -> set[str]:
        """Returns the temporary files that runs have left behind."""
        return {str(path) for path in (self.folder / "tmp").iterdir()}

    def close(self) -> None:
        for run in self.runs:
            for pid in run.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.process.wait()


def parsed(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def processes_of(reached: Path) -> Iterator[int]:
    """Yields the pids of the living processes of a run."""
    mark = f"REACHED={reached}\0".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes():
                    yield int(entry.name)


def wait(condition: Callable[[], bool], what: str, seconds: float = TIMEOUT_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"waited {seconds:.0f} s for {what}")
        time.sleep(POLL_S)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def error_line(output: str) -> str:
    """Returns the line of the first error; the last line without one."""
    errors = [line for line in plain(output).splitlines() if line.startswith("error")]
    return errors[0] if errors else last_line(output)


def last_line(output: str) -> str:
    return next((line for line in reversed(plain(output).splitlines()) if line.strip()), "")
