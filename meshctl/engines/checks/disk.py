"""The disk of the run directory: whether it can be written, and its free space."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.diagnostics.health import Check
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
    except OSError as error:
        found = f"{nearest} cannot be written to: {error.strerror}"
        yield Check(SUBJECT, "run directory", "failure", found, ELSEWHERE)
    else:
        yield _space(nearest, requirements)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
