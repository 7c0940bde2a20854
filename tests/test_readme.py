"""The README tells the truth: its Python runs, its recipe is the recipe, its files exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshctl.cli.load import plan_of
from meshctl.plan.views.topology import topology
from meshctl.recipe.load import load
from meshctl.run.directory import RunDir
from meshctl.view.pictures.text.picture import draw
from meshctl.view.reports.text import text
from tests.paths import ROOT
from tests.view.recorded import whole_run

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_component_works_alone_in_one_process() -> None:
    assert len(README.splitlines()) <= 200
    [code] = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    scored = names["scored"]
    assert scored["reward"].tolist() == [1.0, 0.0, 1.0]  # type: ignore[index]
    assert scored.ids.tolist() == names["batch"].ids.tolist()  # type: ignore[attr-defined]


def test_its_report_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    loaded = load("recipes/grpo_arithmetic.yaml", ["components.actor.parallel.fsdp_size=3"], ROOT)
    for line in text(loaded.report).splitlines():
        assert f"    {line}".rstrip() in [row.rstrip() for row in README.splitlines()]


def test_its_recipe_and_its_picture_are_those_of_make_demo() -> None:
    (recipe,) = blocks("yaml")
    assert recipe in (ROOT / "recipes" / "grpo_arithmetic.yaml").read_text(encoding="utf-8")
    plan = plan_of(str(ROOT / "recipes" / "grpo_arithmetic.yaml"), []).plan
    drawn = draw(topology(plan)).splitlines()[2:]  # below the title, which has the digest
    shown = README[README.index("    grpo-arithmetic  5 workers") :].splitlines()[2 : len(drawn) + 2]
    assert [line.removeprefix("    ") for line in shown] == drawn


def test_its_picture_can_be_drawn_of_any_run(tmp_path: Path) -> None:
    run, recorded = RunDir(tmp_path), whole_run()
    recorded.write(run)
    run.plan.write_text(recorded.plan.to_json())
    drawn = runpy.run_path(str(ROOT / "docs" / "demo.py"))["draw"](run)
    text = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "arithmetic: done after 12 steps" in text and "exam.reward" in text
    assert "url(http" not in drawn and "src:" not in drawn
