from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from tests.view.recorded import Recorded, whole_run

GOLDEN = Path(__file__).parent / "golden"
Pinned = Callable[[str, str], None]


@pytest.fixture
def recorded() -> Recorded:
    return whole_run()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    path = tmp_path / "a run"
    path.mkdir()
    return RunDir(path)


@pytest.fixture
def pinned(run: RunDir) -> Pinned:
    """Compares with a golden file. `GOLDEN=write pytest tests/view` writes them anew; read the difference
    before committing it."""

    def compare(name: str, text: str) -> None:
        text = text.replace(str(run.path), "RUN")
        if os.environ.get("GOLDEN") == "write":
            (GOLDEN / name).write_text(text, encoding="utf-8")
        assert text == (GOLDEN / name).read_text(encoding="utf-8")

    return compare
