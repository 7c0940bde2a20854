"""The file that a process waits for, by the system call that it is in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshctl.engines.node.stacks import file_of
from tests.engines.processes import wait

OPEN, READ = "os.open(sys.argv[1], os.O_RDONLY)", "os.read(os.open(sys.argv[1], os.O_RDWR), 1)"


@contextmanager
def running(code: str, path: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", f"import os, sys; {code}", str(path)])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("code", [OPEN, READ], ids=["path", "descriptor"])
def test_a_file_that_does_not_answer(tmp_path: Path, code: str) -> None:
    if not Path("/proc/self/syscall").exists():
        pytest.skip("this kernel does not show system calls")
    os.mkfifo(tmp_path / "pipe")
    with running(code, tmp_path / "pipe") as pid:
        wait(lambda: file_of(pid) == str(tmp_path / "pipe"), "the process to wait")
        assert file_of(pid, pid) == str(tmp_path / "pipe")


def test_a_process_that_has_ended_or_waits_for_no_file() -> None:
    assert file_of(2**22 + 1) == ""
    with running("import signal; signal.pause()", Path("x")) as pid:
        wait(lambda: Path(f"/proc/{pid}/wchan").read_text() not in ("", "0"), "the process to wait")
        assert not file_of(pid).startswith("/dev/pts")
