"""What the kernel and the processes themselves know about processes that do not advance.

    requests = StackRequests()
    requests.begin([("train", 1, pid), ...], now)
    requests.poll(now)            # the `ProcessState` of each of them, once, as soon as it is known

No method waits. A process writes its stacks itself (`run.stack_dump`). py-spy, if it is installed, adds the
native frames, and is the only source for a process that is stopped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from meshctl.run import stack_dump

STACK_S = 1.0
"""Time limit for a process to write its stacks."""
SETTLE_S = 0.05
"""Seconds after the last growth of the stacks after which they are complete."""
SPY_S = 3.0
"""Time limit for py-spy."""
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
    """The function of the kernel in which the process waits, where the kernel tells."""
    swapped_bytes: int = 0
    stack: str = ""
    """faulthandler's stacks of all threads; empty if the process has written none."""
    native: str = ""
    """py-spy's stacks of all threads, with native frames; empty where py-spy is not installed."""

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED

    def to_message(self) -> dict[str, Any]:
        return asdict(self)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in STOPPED


def state_of(pid: int) -> ProcessState:
    """Returns the state of a process without its stacks."""
    found = ProcessState(pid)
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        found = replace(found, state=stat.rpartition(")")[2].split()[0])
    with suppress(OSError):
        name = Path(f"/proc/{pid}/wchan").read_text()
        found = replace(found, waits_in="" if name == "0" else name)
    with suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        swap = next((line for line in status if line.startswith("VmSwap:")), "VmSwap: 0")
        found = replace(found, swapped_bytes=1024 * int(swap.split()[1]))
    return found


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
    spy: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None


class StackRequests:
    def __init__(self) -> None:
        self._open: list[_Request] = []

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def begin(self, processes: Iterable[tuple[str, int, int]], now: float) -> None:
        """Asks processes for their stacks, each given as (group, rank, pid)."""
        for group, rank, pid in processes:
            request = _Request(group, rank, pid, now, stack_dump.find(pid), changed=now)
            if request.number is not None:
                with suppress(OSError):
                    request.start = stack_dump.request(pid, request.number)
            _start_spy(request)
            self._open.append(request)

    def poll(self, now: float) -> list[list[Any]]:
        """Returns [group, rank, state] of the processes whose stacks are complete, or do not come."""
        complete = [request for request in self._open if _is_complete(request, now)]
        self._open = [request for request in self._open if request not in complete]
        return [[request.group, request.rank, _result(request).to_message()] for request in complete]

    def close(self) -> None:
        for request in self._open:
            _spied(request)
        self._open = []


def _is_complete(request: _Request, now: float) -> bool:
    if request.number is not None:
        text = stack_dump.read(request.pid, request.number, request.start)
        if text != request.seen:
            request.seen, request.changed = text, now
    has_written = bool(request.seen) and now - request.changed >= SETTLE_S
    is_silent = request.number is None or now - request.began >= STACK_S or is_stopped(request.pid)
    is_spied = request.spy is None or request.spy.poll() is not None or now - request.began >= SPY_S
    return (has_written or is_silent) and is_spied


def _result(request: _Request) -> ProcessState:
    return replace(state_of(request.pid), stack=request.seen, native=_spied(request))


def _start_spy(request: _Request) -> None:
    """Starts py-spy, if it is installed: without stopping a process that is stopped anyway."""
    path = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    path = path or shutil.which("py-spy")
    if path is None:
        return
    kind = "--nonblocking" if state_of(request.pid).is_stopped else "--native"
    request.output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_spied`)
    with suppress(OSError):
        request.spy = subprocess.Popen(
            [path, "dump", kind, "--pid", str(request.pid)],
            stdin=subprocess.DEVNULL,
            stdout=request.output,
            stderr=subprocess.DEVNULL,
        )


def _spied(request: _Request) -> str:
    if request.output is None:
        return ""
    if request.spy is not None and request.spy.poll() is None:
        request.spy.kill()
        request.spy.wait()
    request.output.seek(0)
    with request.output:
        return request.output.read(stack_dump.STACK_BYTES_MAX).decode(errors="replace")
