"""The guard: whatever dies, everything that was started goes too, within seconds, and by its own pid.

    launcher         subreaper: the grandchildren of whoever dies come to it
      agent          dies with the launcher (SIGTERM)
      fork server    dies with the launcher (SIGTERM), and is a subreaper itself for what its workers leave
                     behind
        worker       dies with the fork server (SIGKILL), and with its agent, whose socket the fork server
                     watches

PR_SET_PDEATHSIG is tied to the parent *thread*, so processes are forked from the main thread; and it misses a
parent that died before it was set, so `die_with` looks again afterwards.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL when a run is torn down; the run's own `grace` is for an orderly end.
"""

_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Makes this process the one to which orphaned descendants come, in place of init."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, by: signal.Signals) -> None:
    """This process gets `by` when its parent dies; at once if that has happened already."""
    _prctl(_SET_PDEATHSIG, int(by))
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def rename(title: str) -> None:
    """What `ps` and `top` show, cut to 15 bytes by the kernel."""
    _prctl(_SET_NAME, title.encode() + b"\0")


def name_of(code: int) -> str:
    """An exit status in words: `exit code 3`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def children() -> list[int]:
    """Of this process: started here or adopted, alive or waiting to be reaped."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except FileNotFoundError:
            return _children_by_parent()
    return found


def _children_by_parent() -> list[int]:
    """For kernels built without CONFIG_PROC_CHILDREN, and for a thread that ended meanwhile."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def kill_children() -> None:
    """Kills every child, then those that come to this process by it, until there is none.

    Not for ever: a process that hangs in the kernel, or that runs as somebody else, cannot be killed and must
    not hold us.
    """
    end = time.monotonic() + GRACE
    while (pids := children()) and time.monotonic() < end:
        for pid in pids:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        while (ended := ended_child()) is not None:
            os.waitpid(ended, 0)
        time.sleep(0.001)


def reap_adopted(own: Collection[int]) -> None:
    """Buries adopted children that have ended, so that a long run collects no zombies; `own` have somebody
    who waits."""
    while (pid := ended_child()) is not None and pid not in own:
        os.waitpid(pid, 0)


def ended_child() -> int | None:
    """A child that waits to be reaped; it still does afterwards."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended else None


def close_files(but: Collection[int] = ()) -> None:
    """Closes every descriptor from 3 on that a forked process has no business with."""
    start = 3
    for number in sorted(fd for fd in but if fd >= start):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))
