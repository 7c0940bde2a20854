"""Disks that are full, read-only or gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.fault_cases.case import Case, Measured, Place, Running, Skipped, error_line

END_S = 15.0


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts a file system of this size at a folder."""
    if os.geteuid():
        raise Skipped("needs root")
    path.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder: Path) -> Path:
    """Fills a disk up to the last byte. Returns the file that fills it."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                continue
    return file


Spoil = Callable[[Path], Callable[[], None]]
"""Spoils a folder, and returns what mends it."""


def spoiled(place: Place, spoil: Spoil) -> Measured:
    """Spoils the disk of a run directory during the run. The run must end with path and reason, or go on with
    a message, and continue on the mended disk."""
    with small_disk(place.folder / "runs", 24):
        run = place.running(22)
        path, moment = run.path, time.monotonic()
        mend = spoil(path)
        with_end = ended(run.process, END_S)
        seconds = time.monotonic() - moment
        if not with_end:
            run.process.send_signal(signal.SIGTERM)
        code, line = run.end(), error_line(run.output)
        shown = run.output
        is_named = str(path) in shown and any(
            word in shown for word in ("No space left", "Read-only", "is full", "read-only")
        )
        mend()
        again = place.launch("run.steps=200", recipe=str(path))
        resumed = again.end()
        ok = code not in (0, 70) and is_named and resumed == 0 and again.rows == list(range(1, 201))
        return Measured(f"{seconds:.1f} s, exit {code}, resumed with {resumed}: {line}", ok)


def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for the end of a process, and returns whether it came in time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def fill_all(disk: Path) -> Callable[[], None]:
    file = fill(disk)
    return file.unlink


def make_read_only(folder: Path) -> Callable[[], None]:
    """Makes a folder read-only. Files that are open stay writable."""
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,bind,ro", str(folder))
    return partial(subprocess.run, ["umount", "-l", str(folder)], check=True)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def full_for_checkpoints(place: Place) -> Measured:
    """A checkpoint that does not fit is a warning with its path, and the run goes on. Without the last one,
    it has failed."""
    with small_disk(place.folder / "runs", 24) as disk:
        run = place.launch(
            "components.learner.args.mebibytes=4", "run.checkpoint.every=5", "+run.checkpoint.keep=100"
        )
        run.until(lambda: bool(warnings_of(run)), "a warning")
        step = max(event["step"] for event in run.events("step"))
        run.wait_for_step(step + 10)
        run.process.send_signal(signal.SIGTERM)
        code, warning = run.end(), warnings_of(run)[0]
        ok = code == 5 and str(disk) in warning and str(disk) in error_line(run.output)
        return Measured(f"exit {code}: {warning}", ok)


def warnings_of(run: Running) -> list[str]:
    texts = [str(event["value"]["text"]) for event in run.events("warning")]
    return [text for text in texts if "could not be written" in text]


def bad_from_the_start(place: Place, spoil: Spoil) -> Measured:
    with small_disk(place.folder / "runs", 1) as disk:
        mend = spoil(disk)
        run = place.launch()
        moment = time.monotonic()
        code = run.end()
        seconds, line = time.monotonic() - moment, error_line(run.output)
        mend()
        return Measured(f"{seconds:.1f} s, exit {code}: {line}", code == 4 and str(disk) in line)


def deleted(place: Place) -> Measured:
    run = place.running()
    path = run.path
    moved = path.rename(path.with_name("moved"))
    shutil.rmtree(moved, ignore_errors=True)
    moment = time.monotonic()
    code = run.end()
    line = error_line(run.output)
    ok = code == 5 and str(path) in line and "deleted" in line
    return Measured(f"{time.monotonic() - moment:.1f} s, exit {code}: {line}", ok)


BAR = "ends with path and reason, or goes on; never 70; resumes"
CASES = [
    Case(17, "the disk fills up (logs, events, metrics, checkpoints)", BAR, partial(spoiled, spoil=fill_all)),
    Case(17, "the disk becomes read-only", BAR, partial(spoiled, spoil=make_read_only)),
    Case(
        17,
        "no room for a checkpoint",
        "a warning with its path, the run goes on; 5 at its end",
        full_for_checkpoints,
    ),
    Case(
        17, "the disk is full at launch", "exit 4 with the path", partial(bad_from_the_start, spoil=fill_all)
    ),
    Case(
        17,
        "the disk is read-only at launch",
        "exit 4 with the path",
        partial(bad_from_the_start, spoil=make_read_only),
    ),
    Case(17, "the run directory is deleted", "exit 5 with the path", deleted),
]
