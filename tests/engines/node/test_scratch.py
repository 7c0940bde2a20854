"""The folder of a node's sockets: the last of its users removes it, and the next start one that was left."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from meshctl.engines.node.scratch import Scratch, remove_unused, scratch_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("meshctl.engines.node.scratch.MAX_TEMPORARY", 4096)  # folders of tests are longer
    return tmp_path


def test_the_last_user_removes_the_folder() -> None:
    folder = scratch_folder("token", 0)
    node, logs = Scratch("token", 0), Scratch("token", 0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "pymp-1").mkdir()
    node.release()
    assert (folder / "pymp-1").is_dir()
    logs.release()
    assert not folder.exists()
    remove_unused(folder)


def test_a_start_removes_the_folders_of_killed_runs(temporary: Path) -> None:
    used, left, other = Scratch("used", 0), scratch_folder("left", 3), temporary / "meshctl-of-a-user"
    for path in (left / "pymp-1", other):
        path.mkdir(parents=True)
    new = Scratch("new", 0)
    assert set(temporary.iterdir()) == {scratch_folder("used", 0), scratch_folder("new", 0), other}
    used.release()
    new.release()


def test_without_locks_there_is_no_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("fcntl.flock", refuse)
    scratch = Scratch("token", 0)
    assert scratch.descriptor == -1 and not list(temporary.iterdir())
    scratch.release()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("length", [10, 64, 65, 200])
def test_the_folder_has_room_for_sockets(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    temporary = "/" + "t" * (length - 1)
    monkeypatch.setattr("tempfile.tempdir", temporary)
    folder = scratch_folder("token", 0)
    assert folder.parent == Path(temporary if length <= 64 else "/tmp")
    assert len(str(folder / "listener-12345678")) <= 107
