"""Limits on what processes may have: open files, other processes, locked memory, address space, processors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshctl.diagnostics.health import Check
from meshctl.engines.checks import cgroup
from meshctl.engines.checks.options import GIB, MIB, Asked, amount

SUBJECT = "limits"
NO_LIMIT = resource.RLIM_INFINITY
FILES_AT_LEAST, FILES_A_WORKER = 1024, 16
"""The launcher and the fork server hold a few for each worker."""
TASKS_AT_LEAST, TASKS_A_WORKER = 512, 48
"""Processes and threads: gloo, NCCL, autograd and a DataLoader have some of their own in each worker."""
ADDRESSES = 64 * GIB
LOCKED = 64 * MIB


@dataclass(frozen=True)
class Facts:
    files: tuple[int, int] = (4096, 4096)
    """(soft, hard), in open files of a process."""
    tasks: int = NO_LIMIT
    """Of this user."""
    root: bool = False
    """For whom that limit does not hold."""
    pids: int = 0
    """Of the container or session; 0 for no limit."""
    pids_used: int = 0
    locked: int = NO_LIMIT
    """Bytes."""
    infiniband: tuple[str, ...] = ()
    """Adapters, whose drivers lock memory."""
    addresses: int = NO_LIMIT
    """Bytes."""
    cpus: int = 8
    """Of the machine."""
    allowed: int = 8
    """On which this process may run."""
    quota: float = 0.0
    """Of the container or session, in processors; 0 for none."""
    threads: str = ""
    """OMP_NUM_THREADS."""
    workers: int = 0
    """Of the recipe."""


def measure(asked: Asked) -> Facts:
    adapters: list[str] = []
    with suppress(OSError):
        adapters = sorted(path.name for path in Path("/sys/class/infiniband").iterdir())
    return Facts(
        resource.getrlimit(resource.RLIMIT_NOFILE),
        resource.getrlimit(resource.RLIMIT_NPROC)[0],
        os.geteuid() == 0,
        cgroup.least("pids.max", "pids/pids.max"),
        cgroup.value("pids.current", "pids/pids.current"),
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        tuple(adapters),
        resource.getrlimit(resource.RLIMIT_AS)[0],
        os.cpu_count() or 1,
        len(os.sched_getaffinity(0)),
        cgroup.cpus(),
        os.environ.get("OMP_NUM_THREADS", ""),
        asked.workers,
    )


def judge(facts: Facts) -> Iterator[Check]:
    yield _files(facts)
    yield _tasks(facts)
    yield _locked(facts)
    if facts.addresses != NO_LIMIT and facts.addresses < ADDRESSES:
        found = f"{amount(facts.addresses)} a process (ulimit -v); torch maps more than it uses"
        yield Check(
            SUBJECT,
            "address space",
            "failure" if facts.addresses < 4 * GIB else "warning",
            found,
            "ulimit -v unlimited",
        )
    yield _cpus(facts)
    yield _threads(facts)


def told(limit: int) -> str:
    return "no limit" if limit == NO_LIMIT else f"{limit:,}"


def _files(facts: Facts) -> Check:
    soft, hard = facts.files
    needed = max(FILES_AT_LEAST, FILES_A_WORKER * facts.workers)
    found = f"{told(soft)} a process" + (f", may be raised to {told(hard)}" if hard != soft else "")
    if soft != NO_LIMIT and soft < needed:
        why = (
            f" {facts.workers} workers may need {needed:,}"
            if needed > FILES_AT_LEAST
            else " little for a run"
        )
        room = hard == NO_LIMIT or hard >= needed
        remedy = (
            f"ulimit -n {min(65536, hard) if hard != NO_LIMIT else 65536}"
            if room
            else "raise nofile in /etc/security/limits.conf"
        )
        return Check(SUBJECT, "open files", "failure" if soft < 128 else "warning", f"{found}:{why}", remedy)
    return Check(SUBJECT, "open files", "ok", found)


def _tasks(facts: Facts) -> Check:
    """Processes and threads, by user and by container."""
    needed = max(TASKS_AT_LEAST, TASKS_A_WORKER * facts.workers)
    by_user = NO_LIMIT if facts.root else facts.tasks
    left = facts.pids - facts.pids_used if facts.pids else NO_LIMIT
    user = f"ulimit -u {4 * needed}, or raise nproc in /etc/security/limits.conf"
    container = "raise the limit of the container: docker run --pids-limit=-1, or TasksMax= of the session"
    for room, remedy, whose in (
        (by_user, user, "of this user"),
        (left, container, "left in this container or session"),
    ):
        if room != NO_LIMIT and room < needed:
            why = (
                f"{facts.workers} workers may need {needed:,}"
                if needed > TASKS_AT_LEAST
                else "little for a run"
            )
            found = f"{max(0, room):,} processes and threads {whose}: {why}"
            return Check(SUBJECT, "processes", "failure" if room < 64 else "warning", found, remedy)
    least = [room for room in (by_user, left) if room != NO_LIMIT]
    return Check(SUBJECT, "processes", "ok", f"{min(least):,} and threads" if least else "no limit")


def _locked(facts: Facts) -> Check:
    found = "no limit" if facts.locked == NO_LIMIT else amount(facts.locked)
    if facts.infiniband and facts.locked != NO_LIMIT:
        found += f", and there is {', '.join(facts.infiniband[:4])}: its driver locks what it sends"
        return Check(
            SUBJECT, "locked memory", "warning", found, "ulimit -l unlimited; docker run --ulimit memlock=-1"
        )
    return Check(SUBJECT, "locked memory", "ok", found)


def usable(facts: Facts) -> float:
    return min(facts.allowed, facts.quota) if facts.quota else facts.allowed


def _cpus(facts: Facts) -> Check:
    found = (
        f"{usable(facts):g} usable"
        if usable(facts) == facts.cpus
        else f"{usable(facts):g} of {facts.cpus} usable"
    )
    if facts.quota and facts.quota < facts.allowed:
        found += f" (a quota of {facts.quota:g})"
    if facts.workers > 2 * usable(facts):
        return Check(
            SUBJECT,
            "processors",
            "warning",
            f"{found}, for {facts.workers} workers",
            "fewer ranks on cpu, or a larger machine",
        )
    return Check(SUBJECT, "processors", "ok", found)


def _threads(facts: Facts) -> Check:
    name = "OMP_NUM_THREADS"
    if not facts.threads:
        return Check(SUBJECT, name, "ok", "not set: 1 in each worker")
    first = facts.threads.split(",")[0].strip()
    if not first.isdecimal() or not int(first):
        return Check(
            SUBJECT, name, "failure", f"`{facts.threads}` is no number of threads", f"export {name}=1"
        )
    threads, workers = int(first), max(1, facts.workers)
    if threads * workers > usable(facts) and threads > 1:
        times = f" x {workers} workers" if workers > 1 else ""
        found = f"{threads}{times} on {usable(facts):g} processors"
        each = max(1, int(usable(facts) // workers))
        return Check(SUBJECT, name, "warning", f"{found}: they wait for one another", f"export {name}={each}")
    return Check(SUBJECT, name, "ok", facts.threads)
