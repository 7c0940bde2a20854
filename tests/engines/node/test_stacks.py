"""What is found out about a process that does not advance."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.engines.node import stacks
from meshctl.engines.node.stacks import ProcessState, StackRequests, state_of
from tests.engines.processes import wait
from tests.hang import HANG_S

CODE = """
import sys, time
from meshctl.run import stack_dump

stack_dump.register()


def hang():
    print("ready", flush=True)
    while True:
        time.sleep(1)


hang()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
    assert started.stdout and started.stdout.readline() == "ready\n"
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def found_out(pid: int) -> ProcessState:
    """Returns the state of a process, with a clock that is far beyond all time limits after the first poll."""
    requests, found = StackRequests(), list[ProcessState]()
    requests.begin([("train", 1, pid)], 0.0)
    now = iter(range(10**6))

    def is_complete() -> bool:
        found.extend(ProcessState(**one) for _, _, one in requests.poll(next(now) * 0.1))
        return bool(found)

    wait(is_complete, "the state of the process")
    return found[0]


def test_a_process_writes_its_stack(process: subprocess.Popen[str]) -> None:
    state = found_out(process.pid)
    assert state.state in "RS" and " in hang" in state.stack and not state.devices


def test_a_stopped_process_has_its_state(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    wait(lambda: state_of(process.pid).is_stopped, "the stop of the process")
    state = found_out(process.pid)
    assert state.is_stopped and not state.stack


@pytest.mark.parametrize("answer", ["echo '1, 7, 10, 20'\necho '3, 100, 70000, 140000'", "exec sleep 1000"])
def test_the_gpus_of_a_process_are_reported(
    process: subprocess.Popen[str], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{answer}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(stacks, "gpus_of", lambda pid: {3})
    is_silent = "sleep" in answer
    monkeypatch.setattr(stacks, "COMMAND_S", 0.5 if is_silent else HANG_S)
    expected = "nvidia-smi does not answer" if is_silent else "100 % busy, 73.4 of 146.8 GB in use"
    assert found_out(process.pid).devices == [f"GPU 3: {expected}"]


def test_a_process_without_gpus_has_none() -> None:
    assert stacks.gpus_of(os.getpid()) == set() == stacks.gpus_of(2**30)
