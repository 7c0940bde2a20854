"""The folder in which the tests of `launch` run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.small_launch import PARTS, RECIPE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe. Its name must be quoted in a shell."""
    folder = tmp_path / "it's a recipe"
    folder.mkdir()
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder
