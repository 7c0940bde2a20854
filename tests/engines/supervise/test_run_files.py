"""A run whose files cannot be written ends, and says which directory and why."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.run_files import POLL_S, RunFiles
from meshctl.run.directory import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "test", "now")


def test_a_directory_that_is_there_can_be_written(run: RunDir) -> None:
    files = RunFiles(run, print)
    before = sorted(run.path.iterdir())
    assert (list(files.poll(0.0)), files.problem()) == ([], "")
    assert sorted(run.path.iterdir()) == before


def test_a_deleted_directory_is_noticed_at_the_next_check(run: RunDir) -> None:
    files = RunFiles(run, print)
    assert not list(files.poll(0.0))
    shutil.rmtree(run.path)
    assert not list(files.poll(POLL_S / 2))
    [found] = files.poll(POLL_S)
    assert found.cause.error == f"the run directory {run.path} was deleted"
    assert files.problem() == f"the run directory {run.path} cannot be written: No such file or directory"


@pytest.mark.parametrize("priority", [Priority.OWN, Priority.ECHO])
def test_a_deleted_directory_is_the_cause_of_what_follows(run: RunDir, priority: Priority) -> None:
    """A process of the run may have made a folder of its name again."""
    files, cause = RunFiles(run, print), Cause(priority, "the agent of one: exit code 1")
    assert files.explain(cause) is cause
    run.path.rename(run.path.with_name("moved"))
    run.path.mkdir()
    found = files.explain(cause)
    assert (
        found
        and found.line == f"the run directory {run.path} was deleted; then the agent of one: exit code 1"
    )


def test_a_full_disk_is_found_by_writing(run: RunDir) -> None:
    (run.path / ".probe").symlink_to("/dev/full")
    problem = RunFiles(run, print).problem()
    assert problem == f"the run directory {run.path} cannot be written: No space left on device"
    assert not (run.path / ".probe").exists()


def test_a_disk_that_becomes_full_is_a_warning(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now, warnings, free = 0.0, list[str](), [9, 0, 0, 5, 0]
    files = RunFiles(run, warnings.append)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free.pop(0)))
    while free:
        now += POLL_S
        assert not list(files.poll(now))
    disk = f"the disk of {run.path} is full"
    assert warnings == [f"{disk}: events wait until there is space, and output of workers is lost"] * 2


def test_a_disk_that_becomes_read_only_is_a_warning(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    warnings = list[str]()
    files = RunFiles(run, warnings.append)
    assert not list(files.poll(0.0)) and warnings == []
    monkeypatch.setattr(os, "utime", refuse)
    for number in range(1, 4):
        assert not list(files.poll(number * POLL_S))
    reason = "cannot be written: Read-only file system; events wait until it can, and output of workers is"
    assert warnings == [f"the disk of {run.path} {reason} lost"]


def test_a_log_that_cannot_be_written_is_a_warning_unless_the_whole_disk_is_full(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings, free = list[str](), [1, 0]
    files = RunFiles(run, warnings.append)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free.pop(0)))
    for path, reason in (("0.log", "File too large"), ("1.log", "No space left on device")):
        files.receive({"type": "log_problem", "path": f"logs/train/{path}", "reason": reason}, 0.0)
    assert warnings == [
        "logs/train/0.log cannot be written: File too large; output is lost until it can",
        f"the disk of {run.path} is full: events wait until there is space, and output of workers is lost",
    ]
