"""A launcher that waits for a disk while it writes the first files of a run.

`posix_spawn` waits in state D until its child has executed a program, and this one opens a named pipe
before, on which nobody writes yet."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = """
import os, sys
from dataclasses import replace
from meshctl.engines.supervise import stalls
from meshctl.engines.supervise import disk_watch
stalls.LIMITS = stalls.Limits(report_s=3.0)
pipe = sys.argv[1]
try:
    with disk_watch.watched("/the/folder"):
        if pipe:
            os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)])
            os.wait()
except KeyboardInterrupt:
    print("interrupted")
print("over")
"""


def started(pipe: Path | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHER, str(pipe or "")]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, start_new_session=True, **both)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_the_disk_is_named_and_a_signal_ends_the_launch_once_it_answers(pipe: Path) -> None:
    launcher = started(pipe)
    assert launcher.stderr
    report = [launcher.stderr.readline() for _ in range(2)]
    assert re.match(r"stalled for \d+ s: the launcher waits for the disk of ", report[0])
    assert report[0].endswith(" (state D)\n") and "look at it" in report[1]
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
    assert launcher.stderr.readline() == "SIGINT: the launch ends once the disk answers\n"
    assert launcher.poll() is None
    pipe.write_text("")
    output, errors = launcher.communicate()
    assert (output, errors, launcher.returncode) == ("interrupted\nover\n", "", 0)


def test_a_launcher_that_does_not_wait_shows_nothing() -> None:
    assert started(None).communicate() == ("over\n", "")


def test_the_watching_process_ends_with_a_killed_launcher(pipe: Path) -> None:
    launcher = started(pipe)
    assert launcher.stderr
    launcher.stderr.readline()
    launcher.kill()
    pipe.write_text("")  # also lets the child of `posix_spawn` go on
    launcher.communicate()  # returns once no process has the streams open
    assert launcher.returncode == -signal.SIGKILL
