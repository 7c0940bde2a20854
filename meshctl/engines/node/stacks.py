"""Asks the kernel for the states of processes that do not advance, and the processes for their stacks.

    requests = StackRequests()
    requests.begin([("train", 1, pid), ...], now)
    requests.poll(now)            # the `ProcessState` of each of them, once, as soon as it is known

No method waits. A process writes its stacks itself (`run.stack_dump`). py-spy, if it is installed, adds the
native frames, and is the only source for a process that is stopped. nvidia-smi, if it is installed, reports
the GPUs that a process uses; it may itself hang with the driver. The kernel knows which ones a process has
open, whatever its environment says and however they are numbered there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run import stack_dump

STACK_S = 1.0
"""Time limit for a process to write its stacks."""
SETTLE_S = 0.05
"""Seconds after the last growth of the stacks after which they are complete."""
COMMAND_S = 3.0
"""Time limit for py-spy and nvidia-smi."""
KILL_S = 0.2
"""Time limit for their end after SIGKILL."""
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
    file: str = ""
    """The file for which a process in state D waits, where the kernel shows it."""
    swapped_bytes: int = 0
    memory_pressure: float = 0.0
    """Percentage of the last ten seconds in which all tasks of the machine waited for memory, because it was
    swapping; 0 where the kernel does not show it."""
    disk_pressure: float = 0.0
    """The same for disks and network file systems."""
    stack: str = ""
    """faulthandler's stacks of all threads; empty if the process has written none."""
    native: str = ""
    """py-spy's stacks of all threads, with native frames; empty where py-spy is not installed."""
    devices: Sequence[str] = ()
    """A line for each GPU that the process uses."""

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED

    def to_message(self) -> dict[str, Any]:
        return asdict(self)


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal or by a debugger."""
    return _letter_of(f"/proc/{pid}") in STOPPED


def _letter_of(folder: str | Path) -> str:
    """Returns the letter of the kernel for the state of a process or thread; empty if it is not there."""
    with suppress(OSError):
        return Path(folder, "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def state_of(pid: int) -> ProcessState:
    """Returns the state of a process without its stacks. It is D if any of its threads is in it: one that
    writes a checkpoint, for example."""
    found = ProcessState(pid, _letter_of(f"/proc/{pid}"))
    with suppress(OSError):
        tasks = (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
        task = next((task for task in tasks if _letter_of(f"/proc/{pid}/task/{task}") == "D"), 0)
        if task:
            found = replace(found, state="D", file=file_of(pid, task))
        name = Path(f"/proc/{pid}/task/{task or pid}/wchan").read_text()
        found = replace(found, waits_in="" if name == "0" else name)
    with suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        swap = next((line for line in status if line.startswith("VmSwap:")), "VmSwap: 0")
        found = replace(found, swapped_bytes=1024 * int(swap.split()[1]))
    return replace(found, memory_pressure=_pressure("memory"), disk_pressure=_pressure("io"))


def _pressure(what: str) -> float:
    """Returns the percentage of the last ten seconds in which no task could run for want of something."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/pressure/{what}").read_text().splitlines():
            if line.startswith("full avg10="):
                return float(line.split()[1].removeprefix("avg10="))
    return 0.0


class _Command:
    """A command that describes a process. It is killed at the end of its time."""

    def __init__(self, words: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `text`)
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL
            )

    def is_over(self, seconds: float) -> bool:
        """Returns whether it has ended, or its time is over after `seconds`."""
        return self._process is None or self._process.poll() is not None or seconds >= COMMAND_S

    def text(self) -> str:
        """Returns its output so far, and ends it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # it may itself wait for a device
                self._process.wait(KILL_S)
        self._output.seek(0)
        with self._output:
            return self._output.read(stack_dump.STACK_BYTES_MAX).decode(errors="replace")


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
    gpus: set[int] = field(default_factory=set)
    spy: _Command | None = None
    smi: _Command | None = None


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
            _start_commands(request)
            self._open.append(request)

    def poll(self, now: float) -> list[list[Any]]:
        """Returns [group, rank, state] of the processes whose stacks are complete, or do not come."""
        complete = [request for request in self._open if _is_complete(request, now)]
        self._open = [request for request in self._open if request not in complete]
        return [[request.group, request.rank, _result(request).to_message()] for request in complete]

    def close(self) -> None:
        for request in self._open:
            _result(request)
        self._open = []


def _is_complete(request: _Request, now: float) -> bool:
    if request.number is not None:
        text = stack_dump.read(request.pid, request.number, request.start)
        if text != request.seen:
            request.seen, request.changed = text, now
    has_written = bool(request.seen) and now - request.changed >= SETTLE_S
    is_silent = request.number is None or now - request.began >= STACK_S or is_stopped(request.pid)
    commands = filter(None, (request.spy, request.smi))
    return (has_written or is_silent) and all(one.is_over(now - request.began) for one in commands)


def _result(request: _Request) -> ProcessState:
    native = request.spy.text() if request.spy else ""
    devices = gpu_lines(request.smi.text(), request.gpus) if request.smi else []
    return replace(state_of(request.pid), stack=request.seen, native=native, devices=devices)


def _start_commands(request: _Request) -> None:
    """Starts py-spy and nvidia-smi, where they are installed. py-spy does not stop a process that is stopped
    anyway."""
    if path := _py_spy():
        kind = "--nonblocking" if state_of(request.pid).is_stopped else "--native"
        request.spy = _Command([path, "dump", kind, "--pid", str(request.pid)])
    request.gpus = gpus_of(request.pid)
    if request.gpus and (words := smi_command()):
        request.smi = _Command(words)


def _py_spy() -> str | None:
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    return shutil.which("py-spy", path=folders) or shutil.which("py-spy")


FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total")
MIB = 1 << 20
GB = 1e9


def gpus_of(pid: int) -> set[int]:
    """Returns the numbers of the NVIDIA GPUs that a process has open."""
    found = set[int]()
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{number}")
                if match := re.fullmatch(r"/dev/nvidia(\d+)", target):
                    found.add(int(match[1]))
    return found


def smi_command() -> list[str]:
    """Returns the command that lists all GPUs; empty if it is not installed."""
    path = shutil.which("nvidia-smi")
    return [path, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"] if path else []


def gpu_lines(output: str, gpus: Collection[int]) -> list[str]:
    """Returns a line for each of some GPUs from the command's output. None of them is in it if the command
    did not answer."""
    rows = [re.split(r"\s*,\s*", row.strip()) for row in output.splitlines()]
    found = {row[0]: row for row in rows if len(row) == len(FIELDS)}
    return [_gpu_line(gpu, found.get(str(gpu))) for gpu in sorted(gpus)]


def _gpu_line(gpu: int, row: list[str] | None) -> str:
    if row is None:
        return f"GPU {gpu}: nvidia-smi does not answer"
    _, busy, used, total = row
    with suppress(ValueError):
        sizes = [int(size) * MIB / GB for size in (used, total)]
        return f"GPU {gpu}: {busy} % busy, {sizes[0]:.1f} of {sizes[1]:.1f} GB in use"
    return f"GPU {gpu}: {busy} % busy"


PATH_BYTES_MAX = 4096
AT_FDCWD = 0xFFFFFF9C
"""The number for the working directory in place of a descriptor, as 32 bits."""


def file_of(pid: int, task: int = 0) -> str:
    """Returns the file that a system call of a process names by its first arguments: a descriptor, or an
    absolute path. `task` is a thread of the process; 0 for its main thread."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/task/{task or pid}/syscall").read_text().split()
        first, second = (int(word, 16) for word in words[1:3])
        if first & 0xFFFFFFFF == AT_FDCWD:
            return _path_at(pid, second)
        return _file_behind(pid, first) or _path_at(pid, first)
    return ""


def _file_behind(pid: int, descriptor: int) -> str:
    with suppress(OSError):
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        return path if path.startswith("/") else ""
    return ""


def _path_at(pid: int, address: int) -> str:
    """Returns the absolute path that is in the memory of a process."""
    with suppress(OSError, ValueError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        text = os.fsdecode(memory.read(PATH_BYTES_MAX).partition(b"\0")[0])
        return text if text.startswith("/") and text.isprintable() else ""
    return ""
