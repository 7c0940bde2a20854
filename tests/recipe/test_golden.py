"""Pinned reports for wrong recipes. The report of each `golden/NAME.yaml` is in the same folder.

    python tests/recipe/test_golden.py      writes the reports anew; read the difference

A first line `# overrides: ...` gives the command line.
"""

from pathlib import Path

import pytest

from meshctl.recipe.load import load
from meshctl.view.reports.text import text

GOLDEN = Path(__file__).parent / "golden"
RECIPES = sorted(path.stem for path in GOLDEN.glob("*.yaml") if not path.stem.startswith("circle_"))


def report_of(name: str) -> str:
    file = GOLDEN / f"{name}.yaml"
    first = file.read_bytes().split(b"\n")[0].decode("latin-1")
    overrides = first.removeprefix("# overrides: ").split() if first.startswith("# overrides: ") else []
    loaded = load(f"{name}.yaml", overrides, GOLDEN, environ={}, detect=lambda: "cpu")
    shown = text(loaded.report) or "ok"
    return shown.replace(str(GOLDEN), "GOLDEN").replace(str(GOLDEN.parents[2]), "MESHCTL") + "\n"


@pytest.mark.parametrize("name", RECIPES)
def test_report_is_as_pinned(name: str) -> None:
    assert report_of(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in RECIPES:
        (GOLDEN / f"{name}.txt").write_text(report_of(name), encoding="utf-8")
