"""Calls and commands with a time limit: their values, their errors, and those that do not return."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from meshctl.engines.checks.fork import in_fork, output_of
from tests.hang import HANG_S


def test_the_value_comes_from_another_process() -> None:
    pid, text = in_fork(lambda: [os.getpid(), "x" * 300_000], HANG_S)
    assert pid != os.getpid() and len(text) == 300_000


def test_an_error_is_that_of_the_function() -> None:
    def fail() -> NoReturn:
        raise LookupError("odd")

    with pytest.raises(LookupError, match="odd"):
        in_fork(fail, HANG_S)


def test_a_busy_machine_is_no_disk_that_does_not_answer() -> None:
    def compute() -> float:
        while (used := time.process_time()) < 0.3:
            pass
        return used

    assert in_fork(compute, 0.05) >= 0.3


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("kill -SEGV $$", "killed by SIGSEGV"),
        (
            "echo first >&2; echo RuntimeError: the last line >&2; exit 3",
            "exit code 3: RuntimeError: the last line",
        ),
        (None, "/nowhere/python is not installed, or not on the PATH"),
    ],
)
def test_a_command_that_fails_is_reported_with_its_cause(script: str | None, error: str) -> None:
    command = ["sh", "-c", script] if script else ["/nowhere/python"]
    with pytest.raises(OSError) as found:
        output_of(command, HANG_S)
    assert str(found.value) == error
    assert output_of(["sh", "-c", "echo word; head -c 500000 /dev/zero >&2"], HANG_S) == "word\n"


def test_a_command_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        output_of(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; wait"], 1)
    pid = (tmp_path / "pid").read_text().strip()
    stat = Path("/proc", pid, "stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
