"""Memory, and how processes share it: the machine's and the container's, /dev/shm, memfd, files passed over
unix sockets."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshctl.diagnostics.health import Check
from meshctl.engines.checks import cgroup
from meshctl.engines.checks.options import GIB, MIB, amount
from meshctl.engines.checks.probe import in_a_line

SUBJECT = "memory"
LITTLE = 2 * GIB
SMALL_SHM = 512 * MIB
NEVER_OVERCOMMIT = 2


@dataclass(frozen=True)
class Facts:
    total: int = 16 * GIB
    """Of the machine."""
    available: int = 16 * GIB
    limit: int = 0
    """Of the container or session; 0 for none."""
    used: int = 0
    """Of that limit, without what can be dropped."""
    shm: int = 8 * GIB
    """The size of /dev/shm; 0 where there is none."""
    shm_free: int = 8 * GIB
    shm_wrong: str = ""
    """Why nothing can be written there."""
    memfd: str = ""
    """Why memory without a name cannot be made."""
    sockets: str = ""
    """Why an open file cannot be passed on."""
    overcommit: int = 0


def measure() -> Facts:
    sizes = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, value = line.split(":")
            sizes[name] = int(value.split()[0]) << 10
    shm, free, wrong = _shm()
    overcommit = 0
    with suppress(OSError, ValueError):
        overcommit = int(Path("/proc/sys/vm/overcommit_memory").read_text())
    limit, used = cgroup.least("memory.max", "memory/memory.limit_in_bytes"), 0
    if 0 < limit < sizes.get("MemTotal", limit + 1):
        used = max(
            0,
            cgroup.value("memory.current", "memory/memory.usage_in_bytes")
            - cgroup.entry("memory.stat", "inactive_file"),
        )
    else:
        limit = 0
    return Facts(
        sizes.get("MemTotal", 0),
        sizes.get("MemAvailable", 0),
        limit,
        used,
        shm,
        free,
        wrong,
        memfd(),
        pass_a_file(),
        overcommit,
    )


def _shm() -> tuple[int, int, str]:
    """Its size, what is free of it, and why nothing can be written there; what is written has no name and is
    gone at once."""
    try:
        stat = os.statvfs("/dev/shm")
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE, 0o600)
        try:
            os.write(file, b"word")
        finally:
            os.close(file)
    except OSError as error:
        return 0, 0, str(error.strerror)
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, ""


def memfd() -> str:
    try:
        file = os.memfd_create("meshctl-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, 1 << 16)
            with mmap.mmap(file, 1 << 16) as memory:
                memory[:4] = b"word"
            heard = os.pread(file, 4, 0)
        finally:
            os.close(file)
    except (OSError, AttributeError) as error:
        return in_a_line(error)
    return "" if heard == b"word" else f"`word` came as {heard!r}"


def pass_a_file() -> str:
    """As the fork server and agents talk: packets over a unix socket, and an open file with one."""
    reader = writer = -1
    try:
        reader, writer = os.pipe()
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, other:
            one.settimeout(5)
            other.settimeout(5)
            socket.send_fds(one, [b"word"], [writer])
            heard, files, _, _ = socket.recv_fds(other, 16, 1)
            for file in files:
                os.write(file, b"more")
                os.close(file)
        passed = len(files) == 1 and os.read(reader, 16) == b"more"
        return "" if heard == b"word" and passed else "the file did not arrive"
    except OSError as error:
        return in_a_line(error)
    finally:
        for file in (reader, writer):
            if file >= 0:
                os.close(file)


def judge(facts: Facts) -> Iterator[Check]:
    yield _memory(facts)
    yield _shared(facts)
    yield _works(
        "memfd",
        facts.memfd,
        "memory without a name can be had",
        "Linux 3.17 has it; a sandbox may forbid memfd_create",
    )
    yield _works(
        "unix sockets",
        facts.sockets,
        "packets and open files pass",
        "a sandbox may forbid AF_UNIX, SOCK_SEQPACKET or SCM_RIGHTS",
    )
    if facts.overcommit == NEVER_OVERCOMMIT:
        found = "the kernel gives no memory that it might lack: forks of a process with torch in it may fail"
        yield Check(SUBJECT, "overcommit", "warning", found, "sysctl -w vm.overcommit_memory=0")


def _memory(facts: Facts) -> Check:
    left = facts.limit - facts.used if facts.limit else facts.available
    of = f"the limit of {amount(facts.limit)}" if facts.limit else amount(facts.total)
    found = f"{amount(max(0, left))} free of {of}" + (
        f"; the machine has {amount(facts.total)}" if facts.limit else ""
    )
    if left < LITTLE:
        raised, ended = (
            "raise the limit of the container or session (memory.max)",
            "end what takes it (ps aux --sort=-rss | head)",
        )
        remedy = raised if facts.limit else ended
        return Check(SUBJECT, "memory", "warning", found, remedy)
    return Check(SUBJECT, "memory", "ok", found)


def _shared(facts: Facts) -> Check:
    container = "in a container: docker run --shm-size=8g, or an emptyDir with `medium: Memory` at /dev/shm"
    if facts.shm_wrong:
        return Check(
            SUBJECT,
            "/dev/shm",
            "warning",
            f"nothing can be written there: {facts.shm_wrong}; DataLoader and NCCL do",
            container,
        )
    found = f"{amount(facts.shm_free)} free of {amount(facts.shm)}"
    if facts.shm < SMALL_SHM:
        return Check(
            SUBJECT,
            "/dev/shm",
            "warning",
            f"{found}: little for the workers of a DataLoader and for NCCL",
            container,
        )
    if facts.shm_free < SMALL_SHM:
        remedy = "delete what dead processes left there (ls -l /dev/shm)"
        return Check(
            SUBJECT,
            "/dev/shm",
            "warning",
            f"{found}: little for the workers of a DataLoader and for NCCL",
            remedy,
        )
    return Check(SUBJECT, "/dev/shm", "ok", found)


def _works(name: str, wrong: str, what: str, remedy: str) -> Check:
    return Check(SUBJECT, name, "failure", wrong, remedy) if wrong else Check(SUBJECT, name, "ok", what)
