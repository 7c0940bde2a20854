"""The recipe whose keys are completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.completion.completing import CODE, RECIPE


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, its class, and its config group."""
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    (tmp_path / "arithmetic.py").write_text(CODE)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden.yaml").write_text("")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    for size in ("small", "large"):
        (tmp_path / "conf" / "data" / f"{size}.yaml").write_text(f"# {size} problems\nvars: {{{size}: 1}}\n")
    (tmp_path / "my runs").mkdir()
    (tmp_path / "my runs" / "a recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path
