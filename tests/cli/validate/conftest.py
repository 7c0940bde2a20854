"""A folder with correct recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paths import RECIPE_GOLDEN as GOLDEN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a correct recipe."""
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
