"""What is found out about a process that does not advance."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from meshctl.engines.node.progress import ProcessState, StackRequests, state_of
from tests.engines.processes import wait

CODE = """
import sys, time
from meshctl.run import process

process.register_stacks()


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


def test_a_process_writes_its_stack_unless_it_is_stopped(process: subprocess.Popen[str]) -> None:
    state = found_out(process.pid)
    assert state.state in "RS" and " in hang" in state.stack
    os.kill(process.pid, signal.SIGSTOP)
    wait(lambda: state_of(process.pid).is_stopped, "the stop of the process")
    state = found_out(process.pid)
    assert state.is_stopped and not state.stack
