"""Limits of a process and of this user: open files, tasks, locked memory, address space, processors."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks import cgroup
from meshctl.engines.checks.requirements import (
    GIB,
    MIB,
    Bounds,
    Finding,
    Requirements,
    amount,
    failure,
    ok,
    warning,
)
from meshctl.text.english import counted

NO_LIMIT = resource.RLIM_INFINITY


@dataclass(frozen=True)
class Budget:
    """The numbers of a limited resource that a run uses."""

    recommended: int
    """A number that suffices for a few workers."""
    per_worker: int
    """A number that suffices for each of many workers."""
    least: int
    """A run uses at least this many,"""
    least_per_worker: int
    """and this many more for each worker."""

    def judge(self, name: str, value: float, found: str, remedy: str, workers: int) -> Finding:
        least, needed = self.least + self.least_per_worker * workers, self.per_worker * workers
        users = counted(workers, "worker") if workers else "a run"
        reason = ": may be too few for a run"
        if value < needed:
            reason = f": {users} may need {needed:,}"
        if value < least:
            reason = f": {users} need{'' if workers > 1 else 's'} at least {least:,}"
        judged = Bounds(max(self.recommended, needed), least).judge(name, value, found, remedy, reason)
        return judged._replace(is_of_recipe=value < needed)


FILES = Budget(1024, 16, least=35, least_per_worker=3)
"""Open files. The supervisor and the node process have a few for each worker. A run of 2, 3, 9 and 18 workers
of components fails with 40, 42, 65 and 96."""
TASKS = Budget(512, 48, least=4, least_per_worker=2)
"""Processes and threads. In each worker, gloo, NCCL, autograd and a DataLoader start some."""
ADDRESS_BYTES = Bounds(64 * GIB, 512 * MIB)
"""The import of torch for CPU alone takes 585 MiB."""


@dataclass(frozen=True)
class Facts:
    files: Sequence[int] = (4096, 4096)
    """The soft and the hard limit on open files of a process."""
    tasks: int = NO_LIMIT
    """The limit on processes and threads of this user."""
    is_root: bool = False
    """True if this user is root, to whom the limit on tasks does not apply."""
    pids: int = 0
    """The limit on processes and threads of the container or session; 0 for none."""
    pids_used: int = 0
    locked_bytes: int = NO_LIMIT
    infiniband: Sequence[str] = ()
    """InfiniBand adapters. Their drivers lock memory."""
    address_bytes: int = NO_LIMIT
    cpus: int = 8
    """The processors of the machine."""
    allowed: int = 8
    """The processors that this process may use."""
    quota: float = 0.0
    """The quota of the container or session, in processors; 0 for none."""
    omp_num_threads: str = ""


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    adapters: list[str] = []
    with suppress(OSError):
        adapters = sorted(path.name for path in Path("/sys/class/infiniband").iterdir())
    return {
        "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "tasks": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "is_root": os.geteuid() == 0,
        "pids": cgroup.smallest_limit("pids.max", "pids/pids.max"),
        "pids_used": cgroup.value("pids.current", "pids/pids.current"),
        "locked_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "infiniband": adapters,
        "address_bytes": resource.getrlimit(resource.RLIMIT_AS)[0],
        "cpus": os.cpu_count() or 1,
        "allowed": len(os.sched_getaffinity(0)),
        "quota": cgroup.cpus(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _files(facts, requirements.workers)
    yield _tasks(facts, requirements.workers)
    yield _locked(facts)
    if facts.address_bytes != NO_LIMIT and facts.address_bytes < ADDRESS_BYTES.recommended:
        found = f"{amount(facts.address_bytes)} a process (ulimit -v); torch maps more than it uses"
        yield ADDRESS_BYTES.judge("address space", facts.address_bytes, found, "ulimit -v unlimited")
    yield _cpus(facts, requirements.workers)
    yield _threads(facts, requirements.workers)


def _unbounded(limit: int) -> float:
    return math.inf if limit == NO_LIMIT else limit


def number(limit: int) -> str:
    return "no limit" if limit == NO_LIMIT else f"{limit:,}"


def _files(facts: Facts, workers: int) -> Finding:
    soft, hard = facts.files
    found = f"{number(soft)} per process" + (f" (can be raised to {number(hard)})" if hard != soft else "")
    remedy = "raise nofile in /etc/security/limits.conf"
    if _unbounded(hard) >= max(FILES.recommended, FILES.per_worker * workers):
        remedy = f"ulimit -n {min(65536, _unbounded(hard)):.0f}"
    return FILES.judge("open files", _unbounded(soft), found, remedy, workers)


def _tasks(facts: Facts, workers: int) -> Finding:
    """Judges how many processes and threads this user and this container may still start."""
    enough = max(TASKS.recommended, TASKS.per_worker * workers)
    of_user = math.inf if facts.is_root else _unbounded(facts.tasks)
    of_container = facts.pids - facts.pids_used if facts.pids else math.inf
    if of_user < enough:
        found = f"{of_user:,} processes and threads of this user"
        remedy = f"ulimit -u {4 * enough}, or raise nproc in /etc/security/limits.conf"
        return TASKS.judge("processes", of_user, found, remedy, workers)
    left = min(of_user, of_container)
    if left >= enough:
        return ok("processes", f"{left:,} and threads" if left < math.inf else "no limit")
    found = f"{max(0, left):,} processes and threads left in this container or session"
    remedy = "raise the limit of the container: docker run --pids-limit=-1, or TasksMax= of the session"
    return TASKS.judge("processes", left, found, remedy, workers)


def _locked(facts: Facts) -> Finding:
    found = "no limit" if facts.locked_bytes == NO_LIMIT else amount(facts.locked_bytes)
    if not facts.infiniband or facts.locked_bytes == NO_LIMIT:
        return ok("locked memory", found)
    found += f"; the driver of {', '.join(facts.infiniband[:4])} locks the memory that it sends"
    return warning("locked memory", found, "ulimit -l unlimited; docker run --ulimit memlock=-1")


def usable_cpus(facts: Facts) -> float:
    return min(facts.allowed, facts.quota) if facts.quota else facts.allowed


def _cpus(facts: Facts, workers: int) -> Finding:
    usable = usable_cpus(facts)
    found = f"{usable:g} usable" if usable == facts.cpus else f"{usable:g} of {facts.cpus} usable"
    if facts.quota and facts.quota < facts.allowed:
        found += f" (a quota of {facts.quota:g})"
    if workers > 2 * usable:
        remedy = "use fewer workers, or a larger machine"
        return warning("processors", f"{found}, for {workers} workers", remedy)
    return ok("processors", found)


def _threads(facts: Facts, workers: int) -> Finding:
    name, text = "OMP_NUM_THREADS", facts.omp_num_threads
    if not text:
        return ok(name, "not set: 1 in each worker")
    first = text.split(",")[0].strip()
    if not first.isdecimal() or not int(first):
        return failure(name, f"`{text}` is not a number of threads", f"export {name}=1")
    threads, workers, usable = int(first), max(1, workers), usable_cpus(facts)
    if threads == 1 or threads * workers <= usable:
        return ok(name, text)
    per_worker = f" x {workers} workers" if workers > 1 else ""
    found = f"{threads} threads{per_worker} on {usable:g} processors: they wait for each other"
    return warning(name, found, f"export {name}={max(1, int(usable // workers))}")
