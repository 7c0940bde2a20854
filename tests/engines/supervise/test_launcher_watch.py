"""A launcher that waits for a disk: the report, the signals, and the end of the patience."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshctl.engines.supervise import disk_watch
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.disk_watch import FILES_S, POLL_S, LauncherWatch, RunFiles
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.watches import Fault
from meshctl.run.directory import RunDir


class Launcher:
    """A launcher whose main thread is in the state that a test sets."""

    def __init__(self, folder: Path, patience_s: float = 0.0) -> None:
        self.is_waiting, self.sleeps = False, 7
        self.shown, self.kills, self.signals = list[str](), 0, Signals()
        self.watch = LauncherWatch(RunDir(folder), self.signals, self.kill, patience_s)

    def kill(self) -> None:
        self.kills += 1

    def found(self) -> list[str]:
        return [
            one.cause.error if isinstance(one, Fault) else one.value["text"][0]
            for one in self.watch.poll(0.0)
        ]

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / POLL_S)):
            self.watch.look()


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    made = Launcher(tmp_path, patience_s=60.0)
    monkeypatch.setattr(disk_watch, "sleep_of", lambda task: f"{made.sleeps}" if made.is_waiting else "")
    monkeypatch.setattr(disk_watch, "announce", made.shown.append)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, Signals.NUMBERS)
    yield made
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def send(number: int) -> None:
    """Sends a signal that waits for the main thread, as for one in state D."""
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def test_one_long_wait_is_reported_and_many_short_ones_are_not(launcher: Launcher, tmp_path: Path) -> None:
    launcher.wait(30)
    launcher.is_waiting = True
    for _ in range(100):
        launcher.sleeps += 1
        launcher.wait(1)
    assert launcher.shown == []
    launcher.wait(20)
    report = f"stalled for 9 s: the launcher waits for the disk of {tmp_path} (state D)"
    assert launcher.shown[0] == report and len(launcher.shown) == 2
    assert launcher.found() == []
    launcher.is_waiting = False
    launcher.wait(1)
    assert launcher.found() == ["the disk answers: the launcher goes on, after 20 s"]
    assert launcher.found() == [] and launcher.kills == 0


def test_a_second_signal_kills(launcher: Launcher) -> None:
    launcher.is_waiting = True
    launcher.wait(12)
    send(signal.SIGTERM)
    launcher.wait(1)
    assert launcher.shown[-1].startswith("SIGTERM: the run ends once the disk answers") and not launcher.kills
    send(signal.SIGINT)
    launcher.wait(3)
    assert launcher.kills == 1 and launcher.shown[-1].startswith("killed; ")
    assert launcher.signals.count == 2 and launcher.signals.first is signal.SIGTERM


def test_signals_are_left_to_a_launcher_that_does_not_wait(launcher: Launcher) -> None:
    send(signal.SIGINT)
    launcher.wait(60)
    assert launcher.signals.count == 0
    assert signal.sigtimedwait([signal.SIGINT], 0) is not None


def test_the_end_of_the_patience_kills_once_and_is_the_cause(launcher: Launcher, tmp_path: Path) -> None:
    launcher.is_waiting = True
    launcher.wait(59)
    assert launcher.found() == [] and launcher.kills == 0
    launcher.wait(30)
    reason = f"the disk of {tmp_path} has not answered for 60 s (`run.patience`)"
    assert launcher.kills == 1 and launcher.shown[-1].startswith(f"error: {reason}; ")
    assert launcher.found() == [reason] and launcher.found() == []


# A launcher whose disk answers


def test_a_signal_ends_a_wait() -> None:
    reader, writer = os.pipe()
    before = signal.getsignal(signal.SIGUSR1)
    with Signals().handled() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.wait([reader], 10_000.0)  # longer than the time limit of a test
        assert signals.take_save_request() and not signals.first
        os.write(writer, b"x")
        signals.wait([reader], 10_000.0)
    assert signal.getsignal(signal.SIGUSR1) is before and signal.set_wakeup_fd(-1) == -1
    for number in (reader, writer):
        os.close(number)


# Files that cannot be written


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "test", "now")


def test_a_deleted_directory_is_noticed_at_the_next_check(run: RunDir) -> None:
    files, before = RunFiles(run, print), sorted(run.path.iterdir())
    assert (list(files.poll(0.0)), files.problem()) == ([], "")
    assert sorted(run.path.iterdir()) == before
    shutil.rmtree(run.path)
    assert not list(files.poll(FILES_S / 2))
    [found] = files.poll(FILES_S)
    assert found.cause.error == f"the run directory {run.path} was deleted"
    assert files.problem() == f"the run directory {run.path} cannot be written: No such file or directory"


@pytest.mark.parametrize("priority", [Priority.OWN, Priority.ECHO])
def test_a_deleted_directory_is_the_cause_of_what_follows(run: RunDir, priority: Priority) -> None:
    """A process of the run may have made a folder of its name again."""
    files, cause = RunFiles(run, print), Cause(priority, "the agent of one: exit code 1")
    assert files.explain(cause) is cause
    run.path.rename(run.path.with_name("moved"))
    run.path.mkdir()
    found = files.explain(cause)
    assert (
        found
        and found.line == f"the run directory {run.path} was deleted; then the agent of one: exit code 1"
    )


def test_a_full_disk_is_found_by_writing(run: RunDir) -> None:
    (run.path / ".probe").symlink_to("/dev/full")
    problem = RunFiles(run, print).problem()
    assert problem == f"the run directory {run.path} cannot be written: No space left on device"
    assert not (run.path / ".probe").exists()


def test_a_disk_that_becomes_full_is_a_warning(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now, warnings, free = 0.0, list[str](), [9, 0, 0, 5, 0]
    files = RunFiles(run, warnings.append)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free.pop(0)))
    while free:
        now += FILES_S
        assert not list(files.poll(now))
    disk = f"the disk of {run.path} is full"
    assert warnings == [f"{disk}: events wait until there is space, and output of workers is lost"] * 2


def test_a_disk_that_becomes_read_only_is_a_warning(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    warnings = list[str]()
    files = RunFiles(run, warnings.append)
    assert not list(files.poll(0.0)) and warnings == []
    monkeypatch.setattr(os, "utime", refuse)
    for number in range(1, 4):
        assert not list(files.poll(number * FILES_S))
    reason = "cannot be written: Read-only file system; events wait until it can, and output of workers is"
    assert warnings == [f"the disk of {run.path} {reason} lost"]


def test_a_log_that_cannot_be_written_is_a_warning_unless_the_whole_disk_is_full(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings, free = list[str](), [1, 0]
    files = RunFiles(run, warnings.append)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free.pop(0)))
    for path, reason in (("0.log", "File too large"), ("1.log", "No space left on device")):
        files.receive({"type": "log_problem", "path": f"logs/train/{path}", "reason": reason}, 0.0)
    assert warnings == [
        "logs/train/0.log cannot be written: File too large; output is lost until it can",
        f"the disk of {run.path} is full: events wait until there is space, and output of workers is lost",
    ]
