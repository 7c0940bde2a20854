"""Checks in children: each answers, or its end is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from meshctl.engines.checks.probe import Answer, Probe
from tests.hang import HANG_S

HERE = "tests.engines.checks.test_children"


# Children


def echo(word: str) -> str:
    print("noise that is no answer")
    return word


def hang() -> None:
    subprocess.Popen(["sleep", "1000"])
    time.sleep(1000)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    print("first\nRuntimeError: the last line", file=sys.stderr)
    sys.stderr.flush()
    os._exit(3)


def fail() -> None:
    raise ValueError("two\n  lines")


def chatter() -> str:
    sys.stderr.write("x" * 500_000)
    return "y" * 300_000


def test_a_child_answers() -> None:
    assert Probe(f"{HERE}:echo", ["word"], HANG_S).answer() == Answer("word")
    assert Probe(f"{HERE}:chatter", [], HANG_S).answer() == Answer("y" * 300_000)
    assert Probe(f"{HERE}:fail", [], HANG_S).answer() == Answer(None, "ValueError: two lines")
    assert Probe(f"{HERE}:none", [], HANG_S).answer().error.startswith("AttributeError: ")


def test_a_child_that_dies_is_reported_with_its_cause() -> None:
    assert Probe(f"{HERE}:crash", [], HANG_S).answer() == Answer(None, "killed by SIGSEGV")
    assert Probe(f"{HERE}:leave", [], HANG_S).answer() == Answer(
        None, "exit code 3: RuntimeError: the last line"
    )


def test_a_child_that_hangs_goes_with_all_that_it_started() -> None:
    hanging = Probe(f"{HERE}:hang", [], 4)
    group = hanging.pid
    assert hanging.answer() == Answer(None, "no answer within 4 s")
    while processes_in(group):
        time.sleep(0.05)
    hanging.close()
    assert hanging.answer().error == "no answer within 4 s"


def processes_in(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_no_process_can_be_started() -> None:
    assert Probe(f"{HERE}:echo", ["word"], start=("/nowhere/python",)).answer() == Answer(
        None, "no process could be started: No such file or directory"
    )
