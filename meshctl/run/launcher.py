"""The process that launched a run, named so that other processes can find out whether it lives.

    launcher = Launcher.present()             # in the launcher; it is stored in `state.json`
    launcher.is_alive()                       # True, False, or None where it runs on another host
    launcher.send(signal.SIGINT)              # to this process, and never to another one with its number

A process number is used again after a process has ended. A process is therefore known by its number together
with its start time, the start of its machine, and the namespace of the number.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run import reading
from meshctl.run.directory import RunDir

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


def is_locked(run: RunDir) -> bool:
    """Returns whether a process of a run lives that has written no `state.json`: one of an earlier
    version."""
    try:
        descriptor = reading.descriptor(run.lock)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


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
