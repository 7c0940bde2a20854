"""A process of a run: its title and open files, its relation to its parent, and the signals of a scheduler.

A scheduler that ends a job sends SIGTERM to every process of it, and SIGKILL some time later. Only the head
and the node processes act on the SIGTERM: the head ends the run in order, with a checkpoint. All other
processes would die at once, so they ignore it.

    os.environ[IN_JOB] = "1"        in the head and in a node process
    is_in_job()                     in the processes that they start
    shield()

A process also writes the stacks of its threads on a signal, whatever they are doing. faulthandler writes
them in its signal handler, without the interpreter's lock, into a file in memory. A process that is stopped,
or that waits for a disk, writes them when it continues.

    register_stacks()                    in the process
    number = find_stacks(pid)            in another process of the same user: the descriptor, or None
    request_stacks(pid, number)          returns the position in the file before the stacks
    read_stacks(pid, number, start)      returns what the process has written since then
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from types import FrameType

IN_JOB = "MESHCTL_IN_JOB"
"""The environment variable that states that the scheduler signals all processes of the run."""
ENDED_BY_HEAD = 75
"""The exit code of a node process whose head is lost, which may start again, or which the head has ended
although the run goes on, so that the scheduler starts another one."""
ENDED_BY_SCHEDULER = 143
"""The exit code of a head that a scheduler has asked to end."""
SHIELDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SET_PDEATHSIG, SET_NAME, SET_CHILD_SUBREAPER, SET_PTRACER = 1, 15, 36, 0x59616D61
"""Options of `prctl`, from linux/prctl.h."""


def _prctl(option: int, value: int | bytes) -> None:
    """Sets an attribute of this process, see prctl(2). Does nothing on systems other than Linux. Raises
    OSError."""
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def die_with(parent: int, by: signal.Signals) -> None:
    """Makes the kernel send signal `by` to this process when its parent dies. Sends it at once if the parent
    has died. Raises OSError.

    The parent is the thread that started this process, so processes are started from the main thread.
    """
    _prctl(SET_PDEATHSIG, int(by))
    if sys.platform == "linux" and os.getppid() != parent:  # it died before
        os.kill(os.getpid(), by)


def allow_tracing_by(parent: int) -> None:
    """Allows a process and its children to read the memory of this one, where only descendants may be read
    (the security module Yama)."""
    with suppress(OSError):
        _prctl(SET_PTRACER, parent)


def adopt_orphans() -> None:
    """Makes this process, in place of init, the parent of its orphaned descendants."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def set_title(title: str) -> None:
    """Sets the name that `ps` and `top` show. The kernel cuts it to 15 bytes."""
    _prctl(SET_NAME, title.encode() + b"\0")


def close_files(but: Collection[int] = ()) -> None:
    """Closes every descriptor from 3 on, except those in `but`."""
    start = 3
    for number in sorted(fd for fd in but if fd >= start):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def is_in_job() -> bool:
    return bool(os.environ.get(IN_JOB))


def shield() -> None:
    """Makes this process deaf to the signals of a scheduler. Programs that it executes, and processes that it
    forks, such as those of a data loader, are not. To be called from the main thread."""
    own = os.getpid()

    def on_signal(number: int, _: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in SHIELDED:
        signal.signal(number, on_signal)


STACK_SIGNAL: int = getattr(signal, "SIGRTMIN", 0) + 11  # which only Linux has
"""A real-time signal: libraries and users rather use the others."""
STACK_NAME = "meshctl-stack"
STACK_BYTES_MAX = 1 << 18


def register_stacks() -> None:
    """Has this process write its stacks on `STACK_SIGNAL`."""
    file = os.memfd_create(STACK_NAME, os.MFD_CLOEXEC)
    faulthandler.register(STACK_SIGNAL, file, all_threads=True, chain=False)
    allow_tracing_by(os.getppid())


def find_stacks(pid: int) -> int | None:
    """Returns the descriptor of a process into which it writes its stacks; None if it writes none."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"/memfd:{STACK_NAME} "):
                return int(number)
    return None


def request_stacks(pid: int, number: int) -> int:
    """Asks a process for its stacks. Returns the size of its file before. Raises `OSError` if the process has
    ended."""
    size = os.stat(f"/proc/{pid}/fd/{number}").st_size
    os.kill(pid, STACK_SIGNAL)
    return size


def read_stacks(pid: int, number: int, start: int) -> str:
    """Returns what a process has written into its file behind `start`; empty if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/fd/{number}", "rb", buffering=0) as file:
        file.seek(start)
        return (file.read(STACK_BYTES_MAX) or b"").decode(errors="replace")
    return ""
