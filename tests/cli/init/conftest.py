"""`meshctl init` runs in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli import init as command
from meshctl.cli.load import Launchable, check


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without accelerators."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "machine", lambda: ("cpu", 0))
    return tmp_path


def names(folder: Path) -> set[str]:
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {file for file in files if not file.endswith("recipe.schema.json")}


def validated(recipe: str, *notes: str) -> Launchable:
    """Returns a recipe that has no diagnostics but notes with these codes."""
    done = check(recipe, [])
    found = [(one.severity, one.code) for one in done.report.diagnostics]
    assert found == [("note", code) for code in notes] and done.launchable, done.report
    return done.launchable
