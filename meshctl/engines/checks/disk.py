"""The disk of the run directory: its free space, and the file operations of a run."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.fork import in_one_line
from meshctl.engines.checks.requirements import MIB, Requirements, amount

SUBJECT = "disk"
MIN_FREE_BYTES = MIB // 4
ELSEWHERE = "write elsewhere: run.dir=PATH"


def check_disk(requirements: Requirements) -> Iterator[Check]:
    """Yields the checks of the disk. They may wait for ever if it does not answer."""
    runs = Path(requirements.runs).absolute()
    nearest = next((folder for folder in (runs, *runs.parents) if folder.exists()), Path("/"))
    folder = nearest / f".meshctl-check-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "one").write_text("one")
    except OSError as error:
        found = f"{nearest} cannot be written to: {error.strerror}"
        yield Check(SUBJECT, "run directory", "failure", found, ELSEWHERE)
    else:
        yield _space(nearest, requirements)
        yield _operations(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"ping")
    except OSError as error:
        remedy = "set TMPDIR to a folder with space"
        yield Check(SUBJECT, "temporary files", "failure", error.strerror or str(error), remedy)


def not_answered(requirements: Requirements, error: BaseException) -> Check:
    """Returns the check of a disk that has not answered in time."""
    remedy = f"look at the disk or the server behind it (df, mount), or {ELSEWHERE}"
    found = f"the test of {requirements.runs} failed: {error}"
    return Check(SUBJECT, "run directory", "failure", found, remedy)


def _space(folder: Path, requirements: Requirements) -> Check:
    name, kind, stat = "run directory", kind_of(folder), os.statvfs(folder)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    where = f"{folder} ({kind})" if kind else f"{folder}"
    found = f"{where}: {amount(free)} free of {amount(total)}"
    each, count = requirements.checkpoint_bytes, requirements.checkpoints
    if count and free < each:
        need = f"{found}, and a checkpoint takes at least {amount(each)}"
        return Check(SUBJECT, name, "failure", need, f"delete old runs, or {ELSEWHERE}")
    remedy = f"delete old runs, keep fewer checkpoints (run.checkpoint.keep), or {ELSEWHERE}"
    if free < each * count:
        need = f"{found}, and {count} checkpoints take at least {amount(each * count)}"
        return Check(SUBJECT, name, "warning", need, remedy)
    if free < MIN_FREE_BYTES:
        return Check(SUBJECT, name, "failure", found, remedy)
    return Check(SUBJECT, name, "ok", found)


def kind_of(folder: Path) -> str:
    """Returns the type of the file system that contains the folder; empty if it is unknown."""
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


def _operations(folder: Path) -> Check:
    name, errors = "rename and lock", []
    for operation in (_rename, _link, _lock):
        try:
            operation(folder)
        except OSError as error:
            errors.append(f"{operation.__name__.strip('_')}: {in_one_line(error)}")
    if errors:
        remedy = "write to another file system: run.dir=PATH"
        return Check(SUBJECT, name, "failure", "; ".join(errors), remedy)
    return Check(SUBJECT, name, "ok", "a rename is atomic, a lock holds")


def _rename(folder: Path) -> None:
    (folder / "two").write_text("two")
    (folder / "two").rename(folder / "one")
    if (folder / "one").read_text() != "two":
        raise OSError("a file that was renamed over another one did not replace it")


def _link(folder: Path) -> None:
    """Replaces a symbolic link by another one, as a run does with `latest`."""
    for target in ("one", "other"):
        (folder / ".latest").symlink_to(target)
        (folder / ".latest").rename(folder / "latest")
    if os.readlink(folder / "latest") != "other":
        raise OSError("a link that was renamed over another one did not replace it")


def _lock(folder: Path) -> None:
    """Locks a file twice, as two launchers of one run would. The second lock must fail."""
    with open(folder / ".lock", "w") as one, open(folder / ".lock", "w") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError("two processes may hold one lock")
