"""The process that launched a run, named so that other processes can find out whether it lives.

    launcher = Launcher.present()             # in the launcher; it is stored in `state.json`
    launcher.is_alive()                       # True, False, or None where it runs on another host
    launcher.send(signal.SIGINT)              # to this process, and never to another one with its number

A process number is used again after a process has ended. A process is therefore known by its number together
with its start time, the start of its machine, and the namespace of the number.

`launches.jsonl` has an object for each launch, with its overrides, versions and machine. `git.txt` has the
state of the recipe's repository at the last one: the commit, the branch, and the first change that is not
committed.

    record_launch(run, ["run.steps=5"])
    launches(run)[-1]["python"]
    record_git_state(run, folder)        starts git, and does not wait for it
    git_state(run)                       {"commit": "7bdc96b...", "branch": "main", "dirty": False}
"""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.package import OUR_VERSION, installed_version
from meshctl.run import clock
from meshctl.run.directory import RunDir
from meshctl.run.reading import appended, bytes_of, decoded, tail_of
from meshctl.text.redaction import redact

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
START_FIELD, STATE_FIELD = 19, 0
"""The places of the start time and of the state in /proc/PID/stat, behind the name of the process."""
ENDED = "ZX"
"""States of a process that has ended and whose parent has not noticed it yet."""


@dataclass(frozen=True)
class Launcher:
    host: str
    pid: int
    boot: str
    """A random number that the kernel draws when the machine starts."""
    namespace: str
    """The namespace of process numbers, `pid:[4026531836]`."""
    start: int
    """The start time of the process in clock ticks since the machine started."""

    @classmethod
    def present(cls) -> Launcher:
        """Returns this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, boot_id(), _namespace(), _start_of(pid) or 0)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Launcher:
        """Raises `KeyError`, `TypeError` or `ValueError` for data of something else."""
        return cls(
            str(data["host"]), int(data["pid"]), str(data["boot"]), str(data["namespace"]), int(data["start"])
        )

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """True if this process can see the launcher, or would if it lived."""
        return self.boot == boot_id() and self.namespace == _namespace()

    def is_alive(self) -> bool | None:
        """Returns whether the launcher lives. Returns None where that is not known: it runs on another host,
        or in another container."""
        if self.is_here:
            return _start_of(self.pid) == self.start
        was_started_again = self.host == socket.gethostname() and self.boot != boot_id()
        return False if was_started_again else None

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal. Returns whether the launcher lived. Raises `PermissionError`."""
        descriptor = self._opened()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def ignores(self, number: signal.Signals) -> bool:
        """Returns whether the launcher ignores a signal, as one that a script has started in the background
        ignores SIGINT."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("SigIgn:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def wait(self, seconds: float) -> bool:
        """Waits at most this long for the end of the launcher, and returns whether it has ended."""
        descriptor = self._opened()
        if descriptor is None:
            return True
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            return bool(poller.poll(1000 * seconds))
        finally:
            os.close(descriptor)

    def _opened(self) -> int | None:
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if _start_of(self.pid) == self.start:  # the descriptor is of this process and of no later one
            return descriptor
        os.close(descriptor)
        return None


def boot_id() -> str:
    """Returns a random number that the kernel draws when the machine starts."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _start_of(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[STATE_FIELD] in ENDED else int(fields[START_FIELD])


LIBRARIES = ("torch", "transformers", "vllm", "numpy")
GPUS = "/proc/driver/nvidia/gpus"
COMMANDS = "rev-parse HEAD && {git} rev-parse --abbrev-ref HEAD && {git} status --porcelain -uno"
MAX_BYTES = 1 << 20
"""Bytes at the end of the file that are read."""


def record_launch(run: RunDir, overrides: Sequence[str]) -> None:
    """Appends what is known about a launch. A disk that does not take it is no reason to fail."""
    libraries = [(name, installed_version(name)) for name in LIBRARIES]
    data = {
        "time": clock.now(),
        "overrides": [redact(override) for override in overrides],
        "host": socket.gethostname(),
        "folder": os.getcwd(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {"meshctl": OUR_VERSION} | {name: version for name, version in libraries if version},
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": _gpus(),
    }
    with suppress(OSError), open(appended(run.launches), "a", encoding="utf-8") as file:
        file.write(json.dumps(data, separators=(",", ":")) + "\n")


def launches(run: RunDir) -> list[dict[str, Any]]:
    """Returns the launches of a run, the first one first."""
    found = list[dict[str, Any]]()
    for line in tail_of(run.launches, MAX_BYTES).splitlines():
        with suppress(ValueError):
            if isinstance(data := decoded(line.decode()), dict):
                found.append(data)
    return found


def _gpus() -> list[str]:
    found = list[str]()
    with suppress(OSError):
        for folder in sorted(Path(GPUS).iterdir()):
            if name := re.search(r"^Model:\s*(.+)$", (folder / "information").read_text(), re.MULTILINE):
                found.append(name[1].strip())
    return found


def record_git_state(run: RunDir, folder: str) -> None:
    """Starts a process that writes the file; an empty one outside of a repository. The status of a large
    repository takes seconds."""
    git, part = f"git -C {shlex.quote(folder)}", shlex.quote(str(run.git.with_suffix(".part")))
    commands = (
        f"({git} {COMMANDS.format(git=git)}) | head -n 3 >{part}; mv {part} {shlex.quote(str(run.git))}"
    )
    with suppress(OSError):  # there is no shell
        subprocess.Popen(
            ["sh", "-c", commands],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            start_new_session=True,
        )


def git_state(run: RunDir) -> dict[str, Any]:
    """Returns `commit`, `branch` and `dirty`; nothing outside of a repository, and where git has not
    answered."""
    try:
        lines = bytes_of(run.git).decode(errors="replace").splitlines()
    except OSError:
        return {}
    return {"commit": lines[0], "branch": lines[1], "dirty": len(lines) > 2} if len(lines) > 1 else {}
