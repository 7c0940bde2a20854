"""A launcher that waits for a disk: the report, the signals, and the end of the patience."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.engines.supervise import disk_watch
from meshctl.engines.supervise.disk_watch import POLL_S, LauncherWatch
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
            one.cause.error if isinstance(one, Fault) else one.value["text"][0] for one in self.watch.poll()
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
