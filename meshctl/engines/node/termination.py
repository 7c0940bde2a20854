"""Kills workers: if a process of the run dies, all processes below it are killed within seconds. After a
failure, `supervise/ending.py` also kills all workers of the run.

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
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL at a forced end. The recipe's `grace` is the time for an orderly
end."""

FLAGS, EXITING = 6, 0x4
"""The index of the flags of the kernel in `stat_of`, and PF_EXITING in them."""


def name_of(code: int) -> str:
    """Returns an exit status in words: `exit code 3`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def stat_of(folder: str | Path) -> list[str]:
    """Returns what the kernel shows of a process or thread in its folder of /proc, after its name: the letter
    of its state, its parent, and so on. Raises `OSError`."""
    return Path(folder, "stat").read_text().rpartition(")")[2].split()


def is_exiting(pid: int) -> bool:
    """Returns whether a process has begun to exit. Its peers may see closed connections before its parent can
    reap it."""
    with suppress(OSError):
        return bool(int(stat_of(f"/proc/{pid}")[FLAGS]) & EXITING)
    return True


def _processes(is_wanted: Callable[[Path], bool]) -> set[int]:
    """Returns the pids of the processes whose folders in /proc are wanted."""
    found = set[int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if is_wanted(entry):
                    found.add(int(entry.name))
    return found


def children() -> set[int]:
    """Returns the pids of this process's children: started or adopted, alive or not reaped yet."""
    try:
        lists = [(task / "children").read_text().split() for task in Path("/proc/self/task").iterdir()]
        return {int(pid) for pids in lists for pid in pids}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread has ended meanwhile
        return _processes(lambda entry: int(stat_of(entry)[1]) == os.getpid())


def kill_children(spare: Collection[int] = ()) -> None:
    """Kills every child except those in `spare`, then the orphans that this process adopts, until none is
    left."""
    _kill(lambda: children() - {*spare})


def kill_marked(mark: str, until: float) -> None:
    """Kills the processes that began with `mark`, such as `NAME=VALUE`, in their environment, and had begun
    at `until`, in seconds since the machine was started. A successor of the node process may have begun
    others since."""

    def is_marked(entry: Path) -> bool:
        is_own = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
        return is_own and int(stat_of(entry)[19]) / os.sysconf("SC_CLK_TCK") <= until

    _kill(lambda: _processes(is_marked))


def _kill(find: Callable[[], set[int]]) -> None:
    """Kills processes until none is found. Gives up after the grace period, because a process that hangs in
    the kernel or belongs to another user cannot be killed and must not block this one."""
    end = time.monotonic() + GRACE_S
    while (pids := find()) and time.monotonic() < end:
        for pid in pids:
            with suppress(PermissionError, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


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
