"""The server of commands after the time limit of a test."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from tests.command_server import call

pytestmark = [pytest.mark.slow, pytest.mark.slow_suite]


def interrupted(*_: object) -> NoReturn:
    raise TimeoutError


def test_a_command_that_is_interrupted_takes_no_answer_of_the_next_one(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, interrupted)
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        assert call(tmp_path, "--version").returncode == 0
        timer.start()
        with pytest.raises(TimeoutError):
            call(tmp_path, "--version", program="import time; time.sleep(4)")
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    done = call(tmp_path, "--version")
    assert done.returncode == 0 and done.stdout.startswith("meshctl")
