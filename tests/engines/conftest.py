"""One process that has imported torch launches every run of these tests; see `driver.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshctl.plan.model import Plan

sys.path.insert(0, str(Path(__file__).parent))
from processes import TIMEOUT, Launch, Launched, Start, alive, litter

from tests.command_server import Started


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(folder, *words)` starts a command, which is killed if it still runs at the end of the test."""
    with ExitStack() as stack:

        def begin(folder: Path, *words: str, **more: str) -> Started:
            found = Started(folder, *words, **more)
            stack.callback(found.kill)
            return found

        yield begin


@pytest.fixture(scope="session")
def temporary() -> Iterator[Path]:
    """A folder for temporary files of these runs only, because other tests run at the same time."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def driver(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("driver.py")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        process.wait(TIMEOUT)


@pytest.fixture
def launch(driver: subprocess.Popen[str], temporary: Path, tmp_path: Path) -> Iterator[Launch]:
    """`launch(plan, mode)`. At the end, checks that no process and no file of the run is left."""
    before, seen = litter(temporary), set()

    def start(
        plan: Plan, mode: str = "", again: bool = False, folder: Path = tmp_path, **more: object
    ) -> Launched:
        (folder / "code").unlink(missing_ok=True)
        request = {
            "plan": json.loads(plan.to_json()),
            "folder": str(folder),
            "env": {"MODE": mode},
            "again": again,
            **more,
        }
        assert driver.stdin and driver.stdout
        driver.stdin.write(json.dumps(request) + "\n")
        driver.stdin.flush()
        launched = Launched(folder, json.loads(driver.stdout.readline())["pid"])
        seen.add(launched.pid)
        return launched

    yield start
    for pid in seen:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    assert litter(temporary) - before == set()
