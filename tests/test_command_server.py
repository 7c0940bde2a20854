"""The server of commands after the time limit of a test."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from tests.command_server import call

pytestmark = [pytest.mark.slow, pytest.mark.slow_suite]


INTERRUPTS = """
import os, signal, time
os.kill({pid}, signal.SIGUSR1)
while not os.path.exists("end"):
    time.sleep(0.01)
"""
"""Interrupts the test, and does not end before it has called another command."""


def interrupted(*_: object) -> NoReturn:
    raise TimeoutError


def test_a_command_that_is_interrupted_takes_no_answer_of_the_next_one(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        assert call(tmp_path, "--version").returncode == 0
        with pytest.raises(TimeoutError):
            call(tmp_path, "--version", program=INTERRUPTS.format(pid=os.getpid()))
    finally:
        signal.signal(signal.SIGUSR1, before)
    done = call(tmp_path, "--version")
    (tmp_path / "end").touch()
    assert done.returncode == 0 and done.stdout.startswith("meshctl")
