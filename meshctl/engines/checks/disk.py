"""The folder of run directories: its free space, and the file operations that a run uses (replacing a file,
links, locks and flushes)."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks.probe import Probe, in_one_line
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

SECONDS, CLEAN_S = 20.0, 5.0
FREE_BYTES = Bounds(5 * GIB, MIB // 4)
MIN_FREE_FILES = 10_000
MAX_FLUSH_S, MAX_CLOCK_SKEW_S = 1.0, 2.0
NETWORKS = (
    "nfs",
    "lustre",
    "gpfs",
    "ceph",
    "cifs",
    "smb",
    "beegfs",
    "fuse",
    "9p",
    "afs",
    "glusterfs",
    "wekafs",
)
"""The prefixes of file systems that are on a network."""
ELSEWHERE = "write elsewhere: run.dir=PATH"


@dataclass(frozen=True)
class Facts:
    folder: str = "."
    """The folder of run directories, or its nearest existing ancestor."""
    error: str = ""
    """The reason why the measurement failed."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Operation -> the reason why it failed."""
    kind: str = ""
    """The type of the file system."""
    free: int = 100 * GIB
    total: int = 1000 * GIB
    free_files: int = 1_000_000
    """The number of files that can still be created; -1 if there is no limit."""
    flush_s: float = 0.0
    """Seconds to flush a small file to the disk."""
    skew_s: float = 0.0
    """Seconds by which the clock of this machine is ahead of the file system's clock."""
    temporary_error: str = ""
    """The reason why no folder for temporary files exists."""


def nearest(runs: Path) -> Path:
    """Returns the folder, or its nearest existing ancestor."""
    return next((folder for folder in (runs, *runs.parents) if folder.exists()), Path("/"))


def scratch(runs: str, pid: int) -> Path:
    """Returns the path of the folder in which `measure` tries file operations. `pid` is the process that
    called for the measurement, on this machine: others may write to the same folder."""
    return nearest(Requirements(runs).runs_folder) / f".meshctl-doctor-{socket.gethostname()}-{pid}"


def clean(requirements: Requirements) -> None:
    """Removes the folder that a killed `measure` left. Runs in a child process, because the disk may still
    hang."""
    Probe("meshctl.engines.checks.disk:remove", [requirements.runs, os.getpid()], CLEAN_S).answer()


def remove(runs: str, pid: int) -> None:
    shutil.rmtree(scratch(runs, pid), ignore_errors=True)


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    return measured(scratch(requirements["runs"], os.getppid()), is_flushed=True)


def measure_quickly(requirements: Requirements) -> dict[str, Any]:
    """Returns the facts without the time of a flush, which may take long."""
    return measured(scratch(requirements.runs, os.getpid()), is_flushed=False)


def measured(folder: Path, is_flushed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"folder": str(folder.parent), "kind": kind_of(folder.parent)}
    with suppress(OSError):
        stat = os.statvfs(folder.parent)
        found["free"], found["total"] = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
        found["free_files"] = stat.f_favail if stat.f_files else -1
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"ping")
    except OSError as error:
        found["temporary_error"] = str(error.strerror or error)
    try:
        folder.mkdir()
        return found | operations(folder, is_flushed)
    except OSError as error:
        return found | {"errors": {"write": str(error.strerror)}}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def operations(folder: Path, is_flushed: bool = True) -> dict[str, Any]:
    """Tries the file operations of a run in a new folder below `folder`. Raises OSError if it cannot write
    there."""
    before = time.time()
    (folder / "one").write_text("one")
    skew = before - (folder / "one").stat().st_mtime
    begin = time.monotonic()
    with open(folder / "flushed", "wb") as file:
        file.write(b"ping")
        file.flush()
        if is_flushed:
            os.fsync(file.fileno())
    errors = dict[str, str]()
    seconds = time.monotonic() - begin
    for name, operation in OPERATIONS.items():
        try:
            operation(folder)
        except OSError as error:
            errors[name] = in_one_line(error)
    return {"errors": errors, "flush_s": seconds, "skew_s": skew}


def _rename(folder: Path) -> None:
    (folder / "two").write_text("two")
    (folder / "two").rename(folder / "one")
    if (folder / "one").read_text() != "two":
        raise OSError("a file that was renamed over another one did not replace it")


def _link(folder: Path) -> None:
    """Replaces a symbolic link by another one, as a run does with `latest`."""
    for target in ("one", "flushed"):
        (folder / ".latest").symlink_to(target)
        (folder / ".latest").rename(folder / "latest")
    if os.readlink(folder / "latest") != "flushed":
        raise OSError("a link that was renamed over another one did not replace it")


def _lock(folder: Path) -> None:
    """Locks a file twice, as two launchers of one run would. The second lock must fail."""
    one, other = (os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError("two processes may hold one lock")
    finally:
        os.close(one)
        os.close(other)


OPERATIONS: Mapping[str, Callable[[Path], None]] = {"rename": _rename, "link": _link, "lock": _lock}


def kind_of(folder: Path) -> str:
    """Returns the type of the file system that contains the folder."""
    longest, kind = -1, ""
    with suppress(OSError):
        real = os.path.realpath(folder)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode().decode("unicode_escape")
            is_above = real == point or real.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= longest:
                longest, kind = len(point), after.split()[0]
    return kind


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    if facts.error:
        remedy = f"look at the disk or the server behind it (df, mount), or {ELSEWHERE}"
        yield failure("run directory", f"the test of {requirements.runs} failed: {facts.error}", remedy)
        return
    if error := facts.errors.get("write"):
        yield failure("run directory", f"{facts.folder} cannot be written to: {error}", ELSEWHERE)
    else:
        yield _space(facts, requirements)
        yield _operations(facts)
        yield _speed(facts)
    if facts.temporary_error:
        yield failure("temporary files", facts.temporary_error, "set TMPDIR to a folder with space")


def space_of(facts: Facts) -> str:
    """Returns `/data (ext4): 100 GiB free of 1,000 GiB`."""
    return f"{_where(facts)}: {amount(facts.free)} free of {amount(facts.total)}"


def _where(facts: Facts) -> str:
    return f"{facts.folder} ({facts.kind})" if facts.kind else facts.folder


def _space(facts: Facts, requirements: Requirements) -> Finding:
    name, found = "run directory", space_of(facts)
    remedy = f"delete old runs, keep fewer checkpoints (run.checkpoint.keep), or {ELSEWHERE}"
    each, count = requirements.checkpoint_bytes, requirements.checkpoints
    if count and facts.free < each:
        need = f"{found}, and a checkpoint takes at least {amount(each)}"
        return failure(name, need, f"delete old runs, or {ELSEWHERE}").of_recipe()
    if facts.free < each * count:
        need = f"{found}, and {count} checkpoints take at least {amount(each * count)}"
        return warning(name, need, remedy).of_recipe()
    if facts.free >= FREE_BYTES.recommended and 0 <= facts.free_files < MIN_FREE_FILES:
        return warning(name, f"{_where(facts)}: only {facts.free_files:,} more files fit", remedy)
    return FREE_BYTES.judge(name, facts.free, found, remedy)


def _operations(facts: Facts) -> Finding:
    name = "rename and lock"
    if facts.errors:
        found = "; ".join(f"{operation}: {error}" for operation, error in facts.errors.items())
        return failure(name, found, "write to another file system: run.dir=PATH")
    if abs(facts.skew_s) > MAX_CLOCK_SKEW_S:
        direction = "behind" if facts.skew_s > 0 else "ahead of"
        skew = f"{abs(facts.skew_s):.0f} s {direction} that of this machine"
        found = f"both work; the clock of the file server is {skew}"
        return warning(name, found, "set both clocks (timedatectl set-ntp true, on the server too)")
    return ok(name, "a rename is atomic, a lock holds")


def _speed(facts: Facts) -> Finding:
    found = f"a small file reaches the disk after {1000 * facts.flush_s:.0f} ms"
    if facts.flush_s > MAX_FLUSH_S:
        remedy = "write checkpoints less often (run.checkpoint.every), or to a faster disk: run.dir=PATH"
        return warning("speed", found, remedy)
    return ok("speed", found + ("; a disk on a network" if facts.kind.startswith(NETWORKS) else ""))
