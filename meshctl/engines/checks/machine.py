"""Examines a machine: whether it has what a recipe needs. Each topic is a function that yields checks.

checks = examine(requirements)      # never raises, leaves no process and no file behind
checks = problems(requirements)     # those for which `launch` refuses to start or warns
"""

from __future__ import annotations

import errno
import math
import os
import platform
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from meshctl import __version__
from meshctl.diagnostics import Check
from meshctl.engines.checks.devices import check_devices, nvidia_smi
from meshctl.engines.checks.fork import in_fork, in_one_line
from meshctl.engines.checks.requirements import MIB, Requirements, amount
from meshctl.package import (
    PACKAGE_DIR,
    installed_version,
    is_in_range,
    is_newer,
    namesake,
    reinstall_command,
    required_python,
    required_ranges,
)
from meshctl.package import (
    requirements as required_libraries,
)
from meshctl.text.english import counted

MIN_FREE_BYTES = MIB // 4
ELSEWHERE = "write elsewhere: run.dir=PATH"
BLOCKED_S = 5.0
"""Seconds within which the disk must answer."""
CONNECT_S = 5.0
MIN_SHM_BYTES = 512 * MIB
FILES, FILES_PER_WORKER, MAX_FILES_PER_WORKER = 35, 3, 16
"""Open files. The supervisor and the node process have a few for each worker. A run of 2, 3, 9 and 18 workers
of components fails with 40, 42, 65 and 96."""
TASKS, TASKS_PER_WORKER, MAX_TASKS_PER_WORKER = 4, 2, 48
"""Processes and threads. In each worker, gloo, NCCL, autograd and a DataLoader start some."""


def examine(requirements: Requirements) -> tuple[Check, ...]:
    """Returns all checks, in the order of the topics."""
    found = list[Check]()
    topics: dict[str, Callable[[Requirements], Iterator[Check]]] = {
        "versions": check_versions,
        "network": check_network,
        "memory": check_memory,
        "limits": check_limits,
        "devices": lambda asked: check_devices(asked, nvidia_smi()),
        "disk": _check_disk,
    }
    for name, topic in topics.items():
        try:
            found += [*topic(requirements)]
        except Exception as error:  # a bug in a topic prevents no launch
            problem = f"could not be examined: {in_one_line(error)}"
            remedy = "this is a bug in meshctl; the machine itself may be fine"
            found.append(Check(name, "all of it", "warning", problem, remedy))
    return tuple(found)


def problems(requirements: Requirements) -> tuple[Check, ...]:
    """Returns the checks that fail, and the warnings."""
    return tuple(check for check in examine(requirements) if check.state != "ok")


def check_versions(_: Requirements) -> Iterator[Check]:
    """Yields the checks of the installation."""
    lines = required_libraries()
    yield Check("versions", "meshctl", "ok", f"{__version__}, in {PACKAGE_DIR}")
    if other := namesake():
        found = f"{other} is installed, too, and to remove one of the two deletes files of both"
        yield Check("versions", "other meshctl", "warning", found, reinstall_command())
    if lines:
        yield _version("python", platform.python_version(), required_python())
    for name, required in required_ranges(lines).items():
        yield _version(name, installed_version(name), required)


def _version(name: str, version: str, required: str) -> Check:
    found, remedy = f"{version}; meshctl requires {required}", f"pip install '{name}{required}'"
    if not version:
        found = f"not installed; meshctl requires {required or 'it'}"
        return Check("versions", name, "failure", found, remedy)
    if is_in_range(version, required):
        return Check("versions", name, "ok", version)
    if is_newer(version, required):
        return Check("versions", name, "warning", f"{found}, and was not tested with it", remedy)
    remedy = f"use a Python {required}" if name == "python" else remedy
    return Check("versions", name, "failure", found, remedy)


def check_network(_: Requirements) -> Iterator[Check]:
    """Yields the check of loopback, which all processes of a run use."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), CONNECT_S).close()
        yield Check("network", "loopback", "ok", "127.0.0.1 answers")
    except OSError as error:
        is_full = error.errno == errno.EADDRINUSE
        reason = "no port is free" if is_full else error.strerror or in_one_line(error)
        found = f"no connection over 127.0.0.1: {reason}"
        remedy = "bring `lo` up (ip link set lo up), allow it in the firewall or sandbox, free ports (ss -s)"
        yield Check("network", "loopback", "failure", found, remedy)


def check_memory(requirements: Requirements) -> Iterator[Check]:
    """Yields the checks of memory."""
    yield _free_memory(requirements)
    yield _dev_shm(requirements)


def _free_memory(requirements: Requirements) -> Check:
    sizes = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        sizes[name] = int(value.split()[0]) << 10
    left, total = sizes["MemAvailable"], sizes["MemTotal"]
    found, remedy = (
        f"{amount(left)} free of {amount(total)}",
        "end the processes that use it (ps aux --sort=-rss)",
    )
    limit = smallest_limit("memory.max", "memory/memory.limit_in_bytes")
    if 0 < limit < total:
        used = own_value("memory.current", "memory/memory.usage_in_bytes")
        left = max(0, limit - max(0, used - own_entry("memory.stat", "inactive_file")))
        found = f"{amount(left)} free of the limit of {amount(limit)}; the machine has {amount(total)}"
        remedy = "raise the limit of the container or session (memory.max)"
    models, copies = requirements.model_bytes, requirements.copy_bytes
    if left < models:
        found += f", and the models on cpu take at least {amount(models)}"
        remedy = f"use smaller models or fewer workers, or {remedy}"
        return Check("memory", "memory", "warning", found, remedy)
    if left < models + copies:
        found += f", and copies of the state for asynchronous checkpoints take at least {amount(copies)}"
        found += f" beside {amount(models)} of models" if models else ""
        remedy = f"save without copies (run.checkpoint.async=false), or {remedy}"
        return Check("memory", "memory", "warning", found, remedy)
    return Check("memory", "memory", "ok", found)


def _dev_shm(requirements: Requirements) -> Check:
    """Checks the size of /dev/shm, which matters to NCCL."""
    try:
        stat = os.statvfs("/dev/shm")
        free = stat.f_bavail * stat.f_frsize
        found = f"{amount(free)} free of {amount(stat.f_blocks * stat.f_frsize)}"
    except OSError as error:
        free, found = 0, f"cannot be used: {error.strerror}"
    if free >= MIN_SHM_BYTES or len(requirements.devices) < 2:
        return Check("memory", "/dev/shm", "ok", found)
    found += ": may be too little for DataLoader and NCCL"
    remedy = (
        "docker run --shm-size=8g, or an emptyDir with `medium: Memory`; or delete files of dead processes"
    )
    return Check("memory", "/dev/shm", "warning", found, remedy)


def check_limits(requirements: Requirements) -> Iterator[Check]:
    """Yields the checks of the limits of a process and of this user."""
    workers = requirements.workers
    soft, hard = map(_unbounded, resource.getrlimit(resource.RLIMIT_NOFILE))
    found = f"{_number(soft)} per process" + (f" (can be raised to {_number(hard)})" if hard != soft else "")
    remedy = "raise nofile in /etc/security/limits.conf"
    if hard >= max(FILES, MAX_FILES_PER_WORKER * workers):
        remedy = f"ulimit -n {min(65536, hard):.0f}"
    least = FILES + FILES_PER_WORKER * workers
    yield _limited("open files", soft, found, remedy, workers, least, MAX_FILES_PER_WORKER * workers)
    yield _tasks(workers)


def _tasks(workers: int) -> Check:
    """Checks how many processes and threads this user and this container may still start."""
    of_user = math.inf if os.geteuid() == 0 else _unbounded(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    limit = smallest_limit("pids.max", "pids/pids.max")
    left = max(0, limit - own_value("pids.current", "pids/pids.current")) if limit else math.inf
    least, most = TASKS + TASKS_PER_WORKER * workers, MAX_TASKS_PER_WORKER * workers
    if of_user <= left:
        found, remedy = "of this user", "raise nproc in /etc/security/limits.conf, or `ulimit -u`"
    else:
        found, remedy = "left in this container or session", "docker run --pids-limit=-1, or TasksMax="
    is_limited = min(of_user, left) < math.inf
    found = f"{min(of_user, left):,} processes and threads {found}" if is_limited else "no limit"
    return _limited("processes", min(of_user, left), found, remedy, workers, least, most)


def _limited(name: str, value: float, found: str, remedy: str, workers: int, least: int, most: int) -> Check:
    """Compares a limit with the least number that a run uses, and with the number that it may use."""
    users = counted(workers, "worker") if workers else "a run"
    if value < least:
        found = f"{found}: {users} need{'' if workers > 1 else 's'} at least {least:,}"
        return Check("limits", name, "failure", found, remedy)
    if value < most:
        return Check("limits", name, "warning", f"{found}: {users} may need {most:,}", remedy)
    return Check("limits", name, "ok", found)


def _unbounded(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _number(limit: float) -> str:
    return "no limit" if limit == math.inf else f"{limit:,}"


def _check_disk(requirements: Requirements) -> Iterator[Check]:
    try:
        for check in in_fork(lambda: [asdict(one) for one in check_disk(requirements)], BLOCKED_S):
            yield Check(**check)
    except TimeoutError as error:
        found = f"the test of {requirements.runs} failed: {error}"
        remedy = f"look at the disk or the server behind it (df, mount), or {ELSEWHERE}"
        yield Check("disk", "run directory", "failure", found, remedy)


def check_disk(requirements: Requirements) -> Iterator[Check]:
    """Yields the checks of the disk. They may wait for ever if it does not answer."""
    runs = Path(requirements.runs).absolute()
    nearest = next((folder for folder in (runs, *runs.parents) if folder.exists()), Path("/"))
    folder = nearest / f".meshctl-check-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        found = f"{nearest} cannot be written to: {error.strerror}"
        yield Check("disk", "run directory", "failure", found, ELSEWHERE)
    else:
        yield _space(nearest, requirements)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _space(folder: Path, requirements: Requirements) -> Check:
    name, stat = "run directory", os.statvfs(folder)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    found = f"{folder}: {amount(free)} free of {amount(total)}"
    each, count = requirements.checkpoint_bytes, requirements.checkpoints
    if count and free < each:
        need = f"{found}, and a checkpoint takes at least {amount(each)}"
        return Check("disk", name, "failure", need, f"delete old runs, or {ELSEWHERE}")
    remedy = f"delete old runs, keep fewer checkpoints (run.checkpoint.keep), or {ELSEWHERE}"
    if free < each * count:
        need = f"{found}, and {count} checkpoints take at least {amount(each * count)}"
        return Check("disk", name, "warning", need, remedy)
    if free < MIN_FREE_BYTES:
        return Check("disk", name, "failure", found, remedy)
    return Check("disk", name, "ok", found)


# The limits of this process's control group and of its ancestors, as a container or a session sets them

MOUNT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Control groups of version 1 report "no limit" as a number of at least this value."""


def control_groups(controller: str = "") -> Iterator[Path]:
    """Yields the folders of this process's control group and of its ancestors, innermost first.

    `controller` is the name of a controller of version 1; it is empty for version 2.
    """
    inside = ""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") or not controllers:
                inside = path.strip("/")
                if controllers:
                    break
    root = MOUNT / controller if controller and (MOUNT / controller).is_dir() else MOUNT
    # In a container, the path may be the one that the host uses.
    below = root / inside if (root / inside).is_dir() else root
    yield below
    yield from (folder for folder in below.parents if folder == root or root in folder.parents)


def _files(new: str, old: str) -> Iterator[Path]:
    controller, _, name = old.partition("/")
    yield from (folder / new for folder in control_groups())
    yield from (folder / name for folder in control_groups(controller) if (MOUNT / controller).is_dir())


def _number_in(file: Path) -> int | None:
    """Returns the first number in a file; None for `max`, and if the file does not exist."""
    with suppress(OSError, ValueError):
        found = int(file.read_text().split()[0])
        return found if 0 <= found < UNLIMITED else None
    return None


def smallest_limit(new: str, old: str) -> int:
    """Returns the smallest limit of this control group and its ancestors; 0 for no limit.

    `new` is the name of a file of version 2, `old` is CONTROLLER/NAME of version 1.
    """
    return min((found for file in _files(new, old) if (found := _number_in(file)) is not None), default=0)


def own_value(new: str, old: str) -> int:
    """Returns the number in a file of this process's own control group; 0 if it is unknown."""
    return next((found for file in _files(new, old) if (found := _number_in(file)) is not None), 0)


def own_entry(file: str, key: str) -> int:
    """Returns the number of a line `key number` in a file of this process's own control group; 0 if it is
    unknown."""
    return _entry(next(control_groups()) / file, key)


def _entry(file: Path, key: str) -> int:
    with suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in file.read_text().splitlines())[key])
    return 0


def kills_for_memory() -> int:
    """Returns how many processes of this control group the kernel has killed because memory ran out; 0 if it
    is unknown."""
    files = [folder / "memory.events" for folder in control_groups()][:1]
    files += [folder / "memory.oom_control" for folder in control_groups("memory")][:1]
    return max((_entry(file, "oom_kill") for file in files), default=0)
