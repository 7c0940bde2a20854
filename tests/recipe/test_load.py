"""Diagnostics before a recipe is interpreted: files that are plans, the detected device type, and characters
in names."""

import sys
from pathlib import Path

import pytest

from meshctl.plan.resolve import resolve
from meshctl.recipe import load as loading
from meshctl.recipe.load import Loaded, detected, load

RECIPE = "groups: {train: {ranks: 2, device_type: cpu, program: train.py}}\n"


def loaded(folder: Path, recipe: str) -> Loaded:
    return load(recipe, [], folder, environ={}, detect=lambda: "cpu")


def test_a_plan_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "train.py").touch()
    ready = loaded(tmp_path, "recipe.yaml")
    (tmp_path / "plan.json").write_text(resolve(ready.recipe, ready.endpoints).to_json(), encoding="utf-8")
    one = loaded(tmp_path, "plan.json")
    (found,) = one.report.diagnostics
    assert not one.readable and (found.code, found.message) == (
        "MC001",
        "`plan.json` is a plan, not a recipe",
    )


def test_a_recipe_may_be_json(tmp_path: Path) -> None:
    text = '{"name": "x", "groups": {"train": {"ranks": 2, "device_type": "cpu", "program": "train.py"}}}'
    (tmp_path / "recipe.json").write_text(text, encoding="utf-8")
    (tmp_path / "train.py").touch()
    assert not loaded(tmp_path, "recipe.json").report.diagnostics


@pytest.mark.parametrize(
    ("there", "kind"),
    [
        ([], "cpu"),
        (["nvidiactl"], "cuda"),
        (["davinci_manager"], "npu"),
        (["kfd", "dri/renderD128"], "cuda"),
        (["kfd"], "cpu"),
        (["dri/renderD128", "dri/card0"], "cpu"),
    ],
)
def test_devices_are_counted_by_what_the_driver_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], kind: str
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(loading, "DEV", tmp_path)
    assert detected() == kind


def test_one_cause_is_reported_once(tmp_path: Path) -> None:
    """A wrong value is not reported again where it is used, and a missing module is not reported for each
    component."""
    (tmp_path / "pieces.py").write_text((Path(__file__).parent / "launched" / "pieces.py").read_text())
    (tmp_path / "recipe.yaml").write_text(
        "seed: x\n"
        "groups: {a: {ranks: 2, device_type: cpu}}\n"
        "components:\n"
        '  "bad name": {_target_: pieces.Source, group: a}\n'
        '  worker: {_target_: pieces.Worker, group: a, args: {width: "${seed}"}}\n'
        "  one: {_target_: absent.One, group: a}\n"
        "  two: {_target_: absent.Two, group: a}\n"
        "pipeline:\n"
        "  s: {call: bad name.next, samples: 8}\n"
        "  t: {call: worker.take, in: s}\n"
        "  u: {call: one.take, in: s}\n"
        "  v: {call: two.take, in: s}\n"
    )
    errors = loaded(tmp_path, "recipe.yaml").report.errors
    assert sorted(error.code for error in errors) == ["MC102", "MC106", "MC501"]
    assert [span.line for error in errors if error.code == "MC501" for span in error.seconds] == [7]
