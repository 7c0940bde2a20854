"""Disks that are full, read-only, frozen or gone. Some are ext4 in a file of their own, over a loop device:
they need root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.fault_cases.case import GONE_S, Case, Measured, Place, Running, Skipped, error_line
from tests.engines.processes import name_of

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


@contextmanager
def own_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts an ext4 file system of its own at a folder. It becomes read-only after an error."""
    if os.geteuid() or not all(map(shutil.which, ("mkfs.ext4", "losetup", "fsfreeze", "e2fsck"))):
        raise Skipped("needs root, mkfs.ext4, e2fsck, losetup and fsfreeze")
    if not Path("/dev/loop-control").exists():
        raise Skipped("needs loop devices")
    path.mkdir(parents=True)
    image = path.with_suffix(".ext4")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount("-o", "loop,errors=remount-ro", str(image), str(path))
    try:
        yield path
    finally:
        thaw(path)
        subprocess.run(["umount", "-l", str(path)], check=True)


def freeze(disk: Path) -> None:
    """From now on every write to the disk waits in state D."""
    subprocess.run(["fsfreeze", "-f", str(disk)], check=True)


def thaw(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-u", str(disk)], stderr=subprocess.DEVNULL)


def break_file_system(folder: Path) -> Callable[[], None]:
    """Has the kernel find an error on an ext4 disk, which makes it read-only, open files included. What was
    not yet on the disk is lost."""
    found = subprocess.run(
        ["findmnt", "-no", "SOURCE,TARGET", "-T", str(folder)], capture_output=True, text=True
    )
    device, target = found.stdout.split()
    trigger = Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error")
    if not trigger.exists():
        raise Skipped("needs a kernel that can trigger an error of ext4")
    subprocess.run(["sync", "-f", target], check=True)
    trigger.write_text("1")

    def mend() -> None:
        subprocess.run(["umount", target], check=True)
        subprocess.run(["e2fsck", "-fy", f"{target}.ext4"], capture_output=True)
        mount("-o", "loop,errors=remount-ro", f"{target}.ext4", target)

    return mend


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


Disk = Callable[[Path, int], AbstractContextManager[Path]]
Spoil = Callable[[Path], Callable[[], None]]
"""Spoils a folder, and returns what mends it."""


def spoiled(place: Place, spoil: Spoil, disk: Disk = small_disk) -> Measured:
    """Spoils the disk of a run directory during the run. The run must end with path and reason, or go on with
    a message, and continue on the mended disk."""
    with disk(place.folder / "runs", 24):
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


def frozen(place: Place) -> Measured:
    """A run whose disk does not answer names it, and goes on once it answers."""
    with own_disk(place.folder / "runs", 48) as disk:
        run = place.running(12)
        path, moment = run.path, time.monotonic()
        freeze(disk)
        run.until(lambda: "stalled for" in run.output, "a report")
        seconds = time.monotonic() - moment
        [line] = [one for one in run.output.splitlines() if "stalled for" in one]
        thaw(disk)
        run.until(lambda: "the disk answers" in run.output, "the report that the disk answers")
        run.wait_for_step(max(event["step"] for event in run.events("step")) + 20)
        run.process.send_signal(signal.SIGTERM)
        code = run.end()
        ok = code == 143 and str(path) in line and "state D" in line and seconds < 12 * place.slack
        return Measured(f"{seconds:.1f} s, exit {code}: {line}", ok and run.rows == whole(run.rows))


def frozen_and_interrupted(place: Place) -> Measured:
    """Two signals end all processes that the kernel lets end; the others end once the disk answers."""
    with own_disk(place.folder / "runs", 48) as disk:
        run = place.running(12)
        freeze(disk)
        time.sleep(4)
        for _ in range(2):
            run.process.send_signal(signal.SIGINT)
            time.sleep(2)
        end = time.monotonic() + GONE_S * place.slack
        while (others := others_than_waiting(run)) and time.monotonic() < end:
            time.sleep(0.1)
        is_reported = "SIGINT: the run ends once the disk answers" in run.output and "killed; " in run.output
        moment = time.monotonic()
        thaw(disk)
        seconds = run.gone_after(moment)
        text = f"left beside state D: {', '.join(others) or 'none'}; gone {seconds:.1f} s after thawing"
        is_ended = run.end() == 130 and not others and seconds < GONE_S * place.slack
        return Measured(text, is_ended and is_reported)


def others_than_waiting(run: Running) -> list[str]:
    """Returns the processes that do not wait for a disk."""
    states = {pid: state_of(pid) for pid in run.processes()}
    return [f"{name_of(pid)} ({state})" for pid, state in states.items() if state not in "DZ"]


def frozen_without_end(place: Place) -> Measured:
    """A disk that does not answer for `run.patience` ends the run, with the disk as the cause."""
    with own_disk(place.folder / "runs", 48) as disk:
        run = place.launch("run.patience=5")
        run.wait_for_step(12)
        freeze(disk)
        run.until(lambda: "has not answered for 5 s" in run.output, "the end")
        thaw(disk)
        code, line = run.end(), error_line(run.output)
        return Measured(f"exit {code}: {line}", code == 5 and "has not answered for 5 s" in line)


def frozen_at_launch(place: Place) -> Measured:
    with own_disk(place.folder / "runs", 24) as disk:
        freeze(disk)
        moment = time.monotonic()
        run = place.launch()
        code, line = run.end(30), error_line(run.output)
        seconds = time.monotonic() - moment
        thaw(disk)
        ok = code == 4 and "no answer" in line and seconds < 10 * place.slack
        return Measured(f"{seconds:.1f} s, exit {code}: {line}", ok)


def whole(rows: list[int]) -> list[int]:
    """Returns all steps up to the last row."""
    return list(range(1, len(rows) + 1))


def state_of(pid: int) -> str:
    """Returns the letter of the kernel for a process; Z for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


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


BAR = "the run ends with path and reason, or goes on; it can be resumed"
CASES = [
    Case(17, "the disk fills up (logs, events, metrics, checkpoints)", BAR, partial(spoiled, spoil=fill_all)),
    Case(17, "the disk becomes read-only", BAR, partial(spoiled, spoil=make_read_only)),
    Case(
        17,
        "an error of the disk makes it read-only",
        BAR,
        partial(spoiled, spoil=break_file_system, disk=own_disk),
    ),
    Case(17, "the disk is frozen", "named in 12 s with its path, the run goes on after it", frozen),
    Case(
        17,
        "the disk is frozen, and two SIGINT",
        "exit 130; all that the kernel lets end is gone in 3 s",
        frozen_and_interrupted,
    ),
    Case(17, "the disk stays frozen", "exit 5 with its path after `run.patience`", frozen_without_end),
    Case(17, "the disk is frozen at launch", "exit 4 in 10 s", frozen_at_launch),
    Case(
        17,
        "no room for a checkpoint",
        "a warning with its path, the run goes on; exit 5 at its end",
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
    Case(
        17,
        "the run directory is deleted or emptied, or its newest checkpoint deleted, also in the last steps",
        "exit 5 with the path",
        deleted,
    ),
]
