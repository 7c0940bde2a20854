"""Every run of these tests is launched by the command server; see `driver.py`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshctl.plan.model import Plan

sys.path.insert(0, str(Path(__file__).parent))
from processes import Launch, Launched, Start, litter

from tests.command_server import Started, server


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


@pytest.fixture
def launch(temporary: Path, tmp_path: Path) -> Iterator[Launch]:
    """`launch(plan, mode)`. At the end, checks that no process and no file of the run is left."""
    before, runs = litter(temporary), list[Launched]()

    def start(plan: Plan, mode: str = "", again: bool = False, folder: Path = tmp_path) -> Launched:
        (folder / "out").unlink(missing_ok=True)
        words = f"Path({str(folder)!r}), {plan.to_json()!r}, {again}"
        program = f"from pathlib import Path\nfrom tests.engines.driver import launch\nraise SystemExit(launch({words}))"
        environ = {**os.environ, "MODE": mode, "TMPDIR": str(temporary)}
        pid = server().start(folder, env=environ, program=program, files=[folder / "out"])
        runs.append(Launched(folder, pid))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()
    assert litter(temporary) - before == set()
