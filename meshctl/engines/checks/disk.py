"""Where runs are written: room, and what a run does with files: rename over others, link, lock, flush. In a
child, as a disk may hang."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.options import GIB, MIB, Asked, amount
from meshctl.engines.checks.probe import Answer, Probe, in_a_line

SUBJECT = "disk"
SECONDS, CLEANING = 20.0, 5.0
ENOUGH, TOO_LITTLE = 5 * GIB, 100 * MIB
FEW_FILES = 10_000
SLOW, APART = 1.0, 2.0
"""Seconds for a small file to be safe, and between the clock of the disk and that of the machine."""
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


@dataclass(frozen=True)
class Facts:
    runs: str = "runs"
    """Where run directories are made."""
    folder: str = "."
    """That, or where it will be made."""
    hangs: str = ""
    """Why nothing could be found out."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """By what was tried, why it does not work."""
    kind: str = ""
    """Of the file system."""
    free: int = 100 * GIB
    total: int = 1000 * GIB
    files: int = 1_000_000
    """That may still be made; -1 where there is no limit."""
    safe: float = 0.0
    """Seconds for a small file to be on the disk."""
    apart: float = 0.0
    """Seconds by which the clock of the disk is before ours."""
    temporary: str = ""
    """Why there is no place for temporary files."""


def begin(asked: Asked) -> tuple[Probe, str]:
    """The probe, and the folder that it makes and takes away."""
    name = f".meshctl-doctor-{os.getpid()}"
    return Probe("meshctl.engines.checks.disk:tries", [str(asked.runs.absolute()), name], SECONDS), name


def clean(asked: Asked, name: str) -> None:
    """Takes away what a probe that was killed has left; in a child too, as the disk may hang still."""
    Probe("meshctl.engines.checks.disk:remove", [str(asked.runs.absolute()), name], CLEANING).answer()


def nearest(runs: Path) -> Path:
    """The folder, or the next one above that is there."""
    return next((folder for folder in (runs, *runs.parents) if folder.exists()), Path("/"))


def remove(runs: str, name: str) -> None:
    shutil.rmtree(nearest(Path(runs)) / name, ignore_errors=True)


def tries(runs: str, name: str) -> dict[str, object]:
    """In a child: what works in a folder of its own there, which is taken away again."""
    folder = nearest(Path(runs))
    found: dict[str, object] = {"folder": str(folder), "kind": kind_of(folder), "wrong": {}}
    with suppress(OSError):
        stat = os.statvfs(folder)
        files = stat.f_favail if stat.f_files else -1
        found |= {
            "free": stat.f_bavail * stat.f_frsize,
            "total": stat.f_blocks * stat.f_frsize,
            "files": files,
        }
    place = folder / name
    try:
        place.mkdir()
    except OSError as error:
        return found | {"wrong": {"write": str(error.strerror)}}
    try:
        return found | attempts(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def attempts(place: Path) -> dict[str, object]:
    wrong: dict[str, str] = {}
    seconds = apart = 0.0
    try:
        apart = time.time()
        (place / "one").write_text("one")
        apart -= (place / "one").stat().st_mtime
        begin = time.monotonic()
        with open(place / "safe", "wb") as file:
            file.write(b"word")
            file.flush()
            os.fsync(file.fileno())
        seconds = time.monotonic() - begin
    except OSError as error:
        return {"wrong": {"write": str(error.strerror)}}
    for name, function in {"rename": _rename, "link": _link, "lock": _lock}.items():
        try:
            function(place)
        except OSError as error:
            wrong[name] = in_a_line(error)
    return {"wrong": wrong, "safe": seconds, "apart": apart}


def _rename(place: Path) -> None:
    (place / "two").write_text("two")
    (place / "two").rename(place / "one")
    if (place / "one").read_text() != "two":
        raise OSError("a file that was renamed over another did not take its place")


def _link(place: Path) -> None:
    """As `latest` is: a link renamed over a link."""
    for target in ("one", "safe"):
        (place / ".latest").symlink_to(target)
        (place / ".latest").rename(place / "latest")
    if os.readlink(place / "latest") != "safe":
        raise OSError("a link that was renamed over another did not take its place")


def _lock(place: Path) -> None:
    """A run is held by a lock that a second opening of the file must not get."""
    one, other = (os.open(place / ".lock", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
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


def kind_of(folder: Path) -> str:
    """The type of the file system, by the longest mount point above."""
    best, kind = -1, ""
    with suppress(OSError):
        real = os.path.realpath(folder)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode().decode("unicode_escape")
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= best:
                best, kind = len(point), after.split()[0]
    return kind


def measure(asked: Asked, answer: Answer) -> Facts:
    temporary = ""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"word")
    except OSError as error:
        temporary = str(error.strerror or error)
    said = answer.said or {}
    return Facts(str(asked.runs), hangs=answer.wrong, temporary=temporary, **said)


def judge(facts: Facts) -> Iterator[Check]:
    if facts.hangs:
        remedy = "look at the disk or the server behind it (df, mount), or write elsewhere: run.dir=PATH"
        yield Check(
            SUBJECT,
            "run directory",
            "failure",
            f"writing to {facts.folder} for {facts.runs}: {facts.hangs}",
            remedy,
        )
    elif why := facts.wrong.get("write"):
        yield Check(
            SUBJECT,
            "run directory",
            "failure",
            f"{facts.folder} cannot be written to: {why}",
            "write elsewhere: run.dir=PATH",
        )
    else:
        yield _room(facts)
        yield _files(facts)
        yield _safe(facts)
    if facts.temporary:
        yield Check(
            SUBJECT, "temporary files", "failure", facts.temporary, "set TMPDIR to a folder with room"
        )


def _room(facts: Facts) -> Check:
    where = f"{facts.folder}" + (f" ({facts.kind})" if facts.kind else "")
    found = f"{where}: {amount(facts.free)} free of {amount(facts.total)}"
    remedy = "delete old runs, keep fewer checkpoints (run.checkpoint.keep), or write elsewhere: run.dir=PATH"
    if facts.free < ENOUGH:
        return Check(
            SUBJECT, "run directory", "failure" if facts.free < TOO_LITTLE else "warning", found, remedy
        )
    if 0 <= facts.files < FEW_FILES:
        return Check(
            SUBJECT, "run directory", "warning", f"{where}: only {facts.files:,} more files fit", remedy
        )
    return Check(SUBJECT, "run directory", "ok", found)


def _files(facts: Facts) -> Check:
    """What a run does with files beside writing them."""
    name, remedy = "rename and lock", "write to another file system: run.dir=PATH"
    broken = {what: facts.wrong[what] for what in ("rename", "link", "lock") if what in facts.wrong}
    if broken:
        found = "; ".join(f"{what}: {why}" for what, why in broken.items())
        return Check(SUBJECT, name, "failure", found, remedy)
    if abs(facts.apart) > APART:
        way = "behind" if facts.apart > 0 else "before"
        found = f"they work; the clock of the disk is {abs(facts.apart):.0f} s {way} that of this machine"
        return Check(
            SUBJECT, name, "warning", found, "set both clocks (timedatectl set-ntp true, on the server too)"
        )
    return Check(SUBJECT, name, "ok", "a rename is whole, a lock holds")


def _safe(facts: Facts) -> Check:
    found = f"a small file is safe after {1000 * facts.safe:.0f} ms"
    if facts.safe > SLOW:
        remedy = "write checkpoints less often (run.checkpoint.every), or to a faster disk: run.dir=PATH"
        return Check(SUBJECT, "speed", "warning", found, remedy)
    shared = facts.kind.startswith(NETWORKS)
    return Check(SUBJECT, "speed", "ok", found + ("; a disk on a network" if shared else ""))
