"""Kills workers: if a process of the run dies, all processes below it are killed within seconds. After a
failure, `supervise/forced_end.py` also kills all workers of the run.

    launcher            subreaper: adopts the orphans of a node process that dies
      node process      dies with the launcher (SIGTERM), on another node with its connection to the head;
                        it is the fork server, and a subreaper for the orphans of its workers
        agent           dies with the node process (SIGKILL)
        worker          dies with the node process (SIGKILL), and with its agent, whose socket the node
                        process watches
        log process     ends when no process has a pipe to it, and kills those with the mark of the run in
                        their environment, although the node process has died and nobody has adopted them

PR_SET_PDEATHSIG is tied to the parent *thread*, so processes are forked from the main thread; and it misses a
parent that died before it was set, so `die_with` checks the parent afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL at a forced end. The recipe's `grace` is the time for an orderly
end."""


def name_of(code: int) -> str:
    """Returns an exit status in words: `exit code 3`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def children() -> list[int]:
    """Returns the pids of this process's children: started or adopted, alive or not reaped yet."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except FileNotFoundError:
            return _children_by_parent()
    return found


def _children_by_parent() -> list[int]:
    """Finds children by the parent pid of every process. For kernels without CONFIG_PROC_CHILDREN, or if a
    thread ends while the threads' children are read."""
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


def kill_children(spare: Collection[int] = ()) -> None:
    """Kills every child except those in `spare`, then the orphans that this process adopts, until none is
    left.

    Gives up after the grace period, because a process that hangs in the kernel or belongs to another user
    cannot be killed and must not block this one.
    """
    end = time.monotonic() + GRACE_S
    while (pids := set(children()) - set(spare)) and time.monotonic() < end:
        for pid in pids:
            with suppress(PermissionError, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def kill_marked(mark: str, until: float) -> None:
    """Kills the processes that began with `mark`, such as `NAME=VALUE`, in their environment, and had begun
    at `until`, in seconds since the machine was started. A successor of the node process may have begun
    others since."""
    end = time.monotonic() + GRACE_S
    while (pids := _marked(mark.encode(), until)) and time.monotonic() < end:
        for pid in pids:
            with suppress(PermissionError, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _marked(mark: bytes, until: float) -> set[int]:
    found = set[int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if mark in (entry / "environ").read_bytes().split(b"\0") and _begin(entry) <= until:
                    found.add(int(entry.name))
    return found


def _begin(entry: Path) -> float:
    """Returns when a process began, in seconds since the machine was started."""
    ticks = (entry / "stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def reap_adopted(own: Collection[int]) -> None:
    """Reaps adopted children that have ended, so that a long run accumulates no zombies. The caller reaps the
    children in `own` itself."""
    while (pid := ended_child()) is not None and pid not in own:
        os.waitpid(pid, 0)


def ended_child() -> int | None:
    """Returns the pid of a child that has ended, without reaping it; None if there is none."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended else None
