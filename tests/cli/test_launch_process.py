"""A process that launches: its exit code is returned, and signals reach it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from meshctl.cli.forks import LaunchProcess


def wait_for_signal(ready: Path) -> int:
    """Waits for SIGINT or SIGTERM in the process, and returns its number."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    ready.touch()
    os.kill(os.getppid(), signal.SIGTERM)
    return int(signal.sigwait(numbers))


@pytest.mark.parametrize(("work", "code"), [(lambda: 3, 3), (lambda: os.kill(os.getpid(), 9) or 0, -9)])
def test_the_exit_code_or_the_signal_is_returned(work: object, code: int) -> None:
    process = LaunchProcess()
    with process.passing_signals():
        assert process.run(work) == code  # type: ignore[arg-type]
    assert process.stopped_code == 0


def test_a_signal_is_passed_on_and_decides_the_exit_code(tmp_path: Path) -> None:
    process, before = LaunchProcess(), signal.getsignal(signal.SIGTERM)
    with process.passing_signals():
        assert process.run(lambda: wait_for_signal(tmp_path / "ready")) == signal.SIGTERM
        assert process.run(lambda: 0) == 0
    assert process.stopped_code == 143 and (tmp_path / "ready").exists()
    assert signal.getsignal(signal.SIGTERM) is before
