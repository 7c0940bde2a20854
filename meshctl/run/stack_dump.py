"""The stack of a process, which it writes itself on a signal, whatever its threads are doing.

    register()                    in the process: from now on `SIGNAL` writes the stacks of all threads
    number = find(pid)            in another process of the same user: the descriptor of the stacks, or None
    request(pid, number)          returns the position in the file before the stacks
    read(pid, number, start)      returns what the process has written since then

faulthandler writes the stacks in its signal handler, without the interpreter's lock, into a file in memory. A
process that is stopped, or that waits for a disk, writes them when it continues.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress

from meshctl.run.process import allow_tracing_by

SIGNAL = signal.SIGRTMIN + 11
"""A real-time signal: libraries and users rather use the others."""
NAME = "meshctl-stack"
STACK_BYTES_MAX = 1 << 18


def register() -> None:
    """Has this process write its stacks on `SIGNAL`."""
    file = os.memfd_create(NAME, os.MFD_CLOEXEC)
    faulthandler.register(SIGNAL, file, all_threads=True, chain=False)
    allow_tracing_by(os.getppid())


def find(pid: int) -> int | None:
    """Returns the descriptor of a process into which it writes its stacks; None if it writes none."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"/memfd:{NAME} "):
                return int(number)
    return None


def request(pid: int, number: int) -> int:
    """Asks a process for its stacks. Returns the size of its file before. Raises `OSError` if the process has
    ended."""
    size = os.stat(f"/proc/{pid}/fd/{number}").st_size
    os.kill(pid, SIGNAL)
    return size


def read(pid: int, number: int, start: int) -> str:
    """Returns what a process has written into its file behind `start`; empty if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/fd/{number}", "rb", buffering=0) as file:
        file.seek(start)
        return (file.read(STACK_BYTES_MAX) or b"").decode(errors="replace")
    return ""
