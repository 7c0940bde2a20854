"""The process that writes logs: no line of a worker is lost, and no worker fails or blocks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.engines.node.scratch import Scratch, scratch_folder
from meshctl.engines.node.worker_logs import WorkerLogs
from tests.log_text import output_of

PRINTS = "import os\nfor number in range({count}): os.write(1, b'%d\\n' % number)\n"


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scratch]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))
    scratch = Scratch("token", 0)
    yield scratch
    assert scratch_folder("token", 0).is_dir(), "this process uses it"
    scratch.release()
    assert not scratch_folder("token", 0).exists()


@pytest.fixture
def logs(scratch: Scratch) -> Iterator[WorkerLogs]:
    logs = WorkerLogs(scratch)
    yield logs
    logs.close()
    assert not os.path.exists(f"/proc/{logs.pid}")


def numbers(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


def child_that_prints(output: int, count: int, then: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", PRINTS.format(count=count) + then], stdout=output)


def test_output_is_written_after_the_node_process_has_died(scratch: Scratch, tmp_path: Path) -> None:
    logs = WorkerLogs(scratch)
    outputs = logs.open([tmp_path / "0.log"], 0)
    os.write(outputs.descriptors[0], b"last words\n")
    outputs.close()
    logs.close()
    assert output_of(tmp_path / "0.log") == "last words\n"


def test_each_reason_is_reported_once(logs: WorkerLogs, tmp_path: Path) -> None:
    paths = [tmp_path / "none" / f"{rank}.log" for rank in range(3)]
    outputs = logs.open(paths, 0)
    for descriptor in outputs.descriptors:
        os.write(descriptor, b"lost\n")
    for worker in range(3):
        outputs.wait_written(worker)
    assert logs.receive() == [(str(paths[0]), "No such file or directory")]
    outputs.close()


def test_a_bound_holds_in_the_next_attempt_too(logs: WorkerLogs, tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    for _ in range(2):
        outputs = logs.open([log], 10_000)
        worker = child_that_prints(outputs.descriptors[0], 2000)
        assert worker.wait() == 0
        outputs.close()
        logs.end_attempt()
        assert output_of(log).endswith("\n1999\n")
        assert {file.name for file in tmp_path.iterdir()} == {"0.log", "0.log.1"}
        assert all(file.stat().st_size <= 5_000 for file in tmp_path.iterdir())
