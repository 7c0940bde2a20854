"""Asks the kernel for the states of processes that do not advance, and the processes for their stacks.

    requests = StackRequests()
    requests.begin([("train", 1, pid), ...], now)
    requests.poll(now)            # the `ProcessState` of each of them, once, as soon as it is known

No method waits. A process writes its stacks itself (`run.process`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run import process

STACK_S = 1.0
"""Time limit for a process to write its stacks."""
SETTLE_S = 0.05
"""Seconds after the last growth of the stacks after which they are complete."""
STOPPED = ("T", "t")
"""The letters of the kernel for a process that is stopped or traced."""
POLL_S = 0.02
"""Seconds between two polls while a request is open."""


@dataclass(frozen=True)
class ProcessState:
    """A process, as the kernel and the process itself describe it."""

    pid: int = 0
    state: str = ""
    """The letter of the kernel: R runs, S sleeps, D waits for a device, T is stopped, t is traced, Z has
    ended; empty where it is unknown."""
    waits_in: str = ""
    """The function of the kernel in which the process waits, where the kernel shows it."""
    stack: str = ""
    """faulthandler's stacks of all threads; empty if the process has written none."""

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal or by a debugger."""
    return _letter_of(f"/proc/{pid}") in STOPPED


def _letter_of(folder: str | Path) -> str:
    """Returns the letter of the kernel for the state of a process or thread; empty if it is not there."""
    with suppress(OSError):
        return Path(folder, "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def state_of(pid: int, stack: str = "") -> ProcessState:
    """Returns the state of a process that has written a stack. It is D if any of its threads is in it: one
    that writes a checkpoint, for example."""
    state, waits_in = _letter_of(f"/proc/{pid}"), ""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        waiting = next((task for task in tasks if _letter_of(task) == "D"), None)
        state = "D" if waiting else state
        waits_in = Path(waiting or f"/proc/{pid}", "wchan").read_text()
    return ProcessState(pid, state, "" if waits_in == "0" else waits_in, stack)


@dataclass
class _Request:
    group: str
    rank: int
    pid: int
    began: float
    number: int | None
    """The descriptor of the process for its stacks."""
    start: int = 0
    seen: str = ""
    changed: float = 0.0

    def is_complete(self, now: float) -> bool:
        if self.number is None:
            return True
        text = process.read_stacks(self.pid, self.number, self.start)
        if text != self.seen:
            self.seen, self.changed = text, now
        has_written = bool(self.seen) and now - self.changed >= SETTLE_S
        return has_written or now - self.began >= STACK_S or is_stopped(self.pid)


class StackRequests:
    def __init__(self) -> None:
        self._open: list[_Request] = []

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def begin(self, processes: Iterable[tuple[str, int, int]], now: float) -> None:
        """Asks processes for their stacks, each given as (group, rank, pid)."""
        for group, rank, pid in processes:
            request = _Request(group, rank, pid, now, process.find_stacks(pid), changed=now)
            if request.number is not None:
                with suppress(OSError):
                    request.start = process.request_stacks(pid, request.number)
            self._open.append(request)

    def poll(self, now: float) -> list[list[Any]]:
        """Returns [group, rank, state] of the processes whose stacks are complete, or do not come."""
        complete = [request for request in self._open if request.is_complete(now)]
        self._open = [request for request in self._open if request not in complete]
        return [[one.group, one.rank, asdict(state_of(one.pid, one.seen))] for one in complete]

    def close(self) -> None:
        self._open = []
