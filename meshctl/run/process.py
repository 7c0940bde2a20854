"""A process of a run: its title and open files, its relation to its parent, and the signals of a scheduler.

A scheduler that ends a job sends SIGTERM to every process of it, and SIGKILL some time later. Only the head
and the node processes act on the SIGTERM: the head ends the run in order, with a checkpoint. All other
processes would die at once, so they ignore it.

    os.environ[IN_JOB] = "1"        in the head and in a node process
    is_in_job()                     in the processes that they start
    shield()
"""

from __future__ import annotations

import ctypes
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
