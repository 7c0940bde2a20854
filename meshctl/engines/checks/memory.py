"""Memory and how processes share it: the machine's and the container's memory, /dev/shm, memfd, and files
passed over unix sockets."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks import cgroup
from meshctl.engines.checks.probe import in_one_line
from meshctl.engines.checks.requirements import (
    GIB,
    MIB,
    Bounds,
    Finding,
    Requirements,
    amount,
    failure_if,
    warning,
)

FREE_BYTES, SHM_BYTES = Bounds(2 * GIB), Bounds(512 * MIB)
NEVER_OVERCOMMIT = 2


@dataclass(frozen=True)
class Facts:
    """Sizes are bytes."""

    total: int = 16 * GIB
    available: int = 16 * GIB
    limit: int = 0
    """The limit of the container or session; 0 for none."""
    used: int = 0
    """Bytes that count against `limit` and that the kernel cannot reclaim."""
    shm: int = 8 * GIB
    """The size of /dev/shm."""
    shm_free: int = 8 * GIB
    shm_error: str = ""
    """The reason why a write to /dev/shm failed."""
    memfd_error: str = ""
    socket_error: str = ""
    """The reason why an open file could not be passed over a unix socket."""
    overcommit: int = 0
    """The kernel setting vm.overcommit_memory."""


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    sizes = dict[str, int]()
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, value = line.split(":")
            sizes[name] = int(value.split()[0]) << 10
    found = {"total": sizes.get("MemTotal", 0), "available": sizes.get("MemAvailable", 0)}
    with suppress(OSError, ValueError):
        found["overcommit"] = int(Path("/proc/sys/vm/overcommit_memory").read_text())
    limit = cgroup.smallest_limit("memory.max", "memory/memory.limit_in_bytes")
    if 0 < limit < sizes.get("MemTotal", limit + 1):
        used = cgroup.value("memory.current", "memory/memory.usage_in_bytes")
        found |= {"limit": limit, "used": max(0, used - cgroup.entry("memory.stat", "inactive_file"))}
    return found | shared_memory() | {"memfd_error": memfd_error(), "socket_error": socket_error()}


def shared_memory() -> dict[str, Any]:
    """Returns the size of /dev/shm and its free bytes. The file written there for the test has no name."""
    try:
        stat = os.statvfs("/dev/shm")
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE, 0o600)
        try:
            os.write(file, b"ping")
        finally:
            os.close(file)
    except OSError as error:
        return {"shm": 0, "shm_free": 0, "shm_error": str(error.strerror)}
    return {"shm": stat.f_blocks * stat.f_frsize, "shm_free": stat.f_bavail * stat.f_frsize}


def memfd_error() -> str:
    """Writes to an anonymous file through a mapping. Returns the reason of a failure, or an empty string."""
    try:
        file = os.memfd_create("meshctl-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, 1 << 16)
            with mmap.mmap(file, 1 << 16) as memory:
                memory[:4] = b"ping"
            read = os.pread(file, 4, 0)
        finally:
            os.close(file)
    except (OSError, AttributeError) as error:
        return in_one_line(error)
    return "" if read == b"ping" else f"`ping` was read as {read!r}"


def socket_error() -> str:
    """Passes an open file over a unix socket, as the fork server does. Returns the reason of a failure, or an
    empty string."""
    try:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, other, open(os.memfd_create("meshctl-doctor"), "r+b") as file:
            one.settimeout(5)
            other.settimeout(5)
            socket.send_fds(one, [b"ping"], [file.fileno()])
            message, passed, _, _ = socket.recv_fds(other, 16, 1)
            for descriptor in passed:
                os.write(descriptor, b"pong")
                os.close(descriptor)
            arrived = message == b"ping" and os.pread(file.fileno(), 4, 0) == b"pong"
        return "" if arrived else "the file did not arrive"
    except (OSError, AttributeError) as error:
        return in_one_line(error)


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _memory(facts, requirements)
    yield _shared_memory(facts, requirements)
    remedy = "Linux 3.17 or later has it; a sandbox may forbid memfd_create"
    yield failure_if(facts.memfd_error, "memfd", "anonymous shared memory works", remedy)
    remedy = "a sandbox may forbid AF_UNIX, SOCK_SEQPACKET or SCM_RIGHTS"
    yield failure_if(facts.socket_error, "unix sockets", "packets and open files pass", remedy)
    if facts.overcommit == NEVER_OVERCOMMIT:
        found = "the kernel never overcommits memory: forks of a process that has torch loaded may fail"
        yield warning("overcommit", found, "sysctl -w vm.overcommit_memory=0")


def _memory(facts: Facts, requirements: Requirements) -> Finding:
    left = facts.limit - facts.used if facts.limit else facts.available
    total = f"the limit of {amount(facts.limit)}" if facts.limit else amount(facts.total)
    machine = f"; the machine has {amount(facts.total)}" if facts.limit else ""
    found = f"{amount(max(0, left))} free of {total}{machine}"
    remedy = "end the processes that use it (ps aux --sort=-rss | head)"
    if facts.limit:
        remedy = "raise the limit of the container or session (memory.max)"
    models, copies = requirements.model_bytes, requirements.copy_bytes
    if left < models:
        found += f", and the models on cpu take at least {amount(models)}"
        return warning("memory", found, f"use smaller models or fewer workers, or {remedy}").of_recipe()
    if left < models + copies:
        found += f", and copies of the state for asynchronous checkpoints take at least {amount(copies)}"
        found += f" beside {amount(models)} of models" if models else ""
        remedy = f"save without copies (run.checkpoint.async=false), or {remedy}"
        return warning("memory", found, remedy).of_recipe()
    return FREE_BYTES.judge("memory", left, found, remedy)


def _shared_memory(facts: Facts, requirements: Requirements) -> Finding:
    has_nccl = len(requirements.devices) > 1
    container = "in a container: docker run --shm-size=8g, or an emptyDir with `medium: Memory` at /dev/shm"
    if facts.shm_error:
        found = f"cannot be written to: {facts.shm_error}; DataLoader and NCCL need it"
        return warning("/dev/shm", found, container)._replace(is_of_recipe=has_nccl)
    found = f"{amount(facts.shm_free)} free of {amount(facts.shm)}"
    is_small = facts.shm < SHM_BYTES.recommended
    remedy = container if is_small else "delete the files that dead processes left there (ls -l /dev/shm)"
    why = ": may be too little for DataLoader workers and NCCL"
    judged = SHM_BYTES.judge("/dev/shm", facts.shm_free, found, remedy, why)
    return judged._replace(is_of_recipe=has_nccl)
