"""`meshctl init` runs in an empty folder, without a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from meshctl.cli import init as command


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without accelerators, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "machine", lambda: ("cpu", 0))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path
