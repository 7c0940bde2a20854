"""Each shipped recipe with kept metrics gives them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import call
from tests.paths import RECIPES

KEPT = sorted(path.name.split(".")[0] for path in RECIPES.glob("*.expected.jsonl"))


@pytest.mark.slow_suite
@pytest.mark.parametrize("name", KEPT)
def test_a_shipped_recipe_gives_its_kept_metrics(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = call(tmp_path, "test", str(RECIPES / f"{name}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 numbers" not in done.stdout
