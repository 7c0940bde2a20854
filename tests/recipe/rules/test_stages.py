"""The rules about pipeline stages, for a class whose argument `split` divides the layers, and for an invented
transformers next to the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

CODE = """
    from meshctl import Component, endpoint
    class Staged(Component):
        MODEL = "args.model"
        LAYOUTS = {"pp_plan": "transformers", "split": "args.split"}
        def __init__(self, model: dict, split: str | list[int] = "count") -> None: ...
        @endpoint(collect="mean")
        def step(self, samples: range) -> dict[str, float]: ...
"""
CONFIG = """
    class {name}Config(PreTrainedConfig):
        model_type = "{kind}"
        {plan}
"""
PLAN = (
    'base_model_pp_plan = {"embed_tokens": (["a"], ["b"]), "layers": (["b"], ["b"]), "norm": (["b"], ["b"])}'
)
PLANS = {"river": PLAN, "gravel": "", "delta": 'base_model_pp_plan = {"embed_in": (["a"], ["b"])}'}


def reported(
    folder: Path, layers: int, split: Any = None, kind: str = "river", **parallel: int
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(CODE))
    (folder / "transformers").mkdir(exist_ok=True)
    (folder / "transformers" / "__init__.py").touch()
    for name, plan in PLANS.items():
        file = folder / "transformers" / "models" / name / f"configuration_{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(CONFIG).format(name=name.title(), kind=name, plan=plan))
    trainer = {
        "_target_": "mine.Staged",
        "group": "train",
        "parallel": {f"{dim}_size": size for dim, size in parallel.items()},
        "model": {"num_layers": layers},
        "args": {"model": {"model_type": kind}} | ({} if split is None else {"split": split}),
    }
    recipe = {
        "groups": {"train": {"ranks": 8, "device_type": "cpu"}},
        "components": {"trainer": trainer},
        "pipeline": {"metrics": {"call": "trainer.step", "samples": 64}},
        "run": {"steps": 1},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    found = load("recipe.yaml", [], folder).report.diagnostics
    return [one for one in found if one.code in ("MC434", "MC437", "MC440", "MC468", "MC469")]


@pytest.mark.parametrize("split", ["count", "cost", [3, 2, 3, 2]])
def test_a_split_that_fits(tmp_path: Path, split: Any) -> None:
    assert reported(tmp_path, 10, split, pp=4) == []


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("even", "is none of count and cost, and no list of numbers"),
        ([5, 5], "has 2 numbers for 4 pipeline stages"),
        ([3, 3, 3, 3], "has 12 layers, and the model has 10"),
        ([10, 0, 0, 0], "contains a value other than a positive integer"),
    ],
)
def test_a_split_that_does_not_fit(tmp_path: Path, split: Any, message: str) -> None:
    [found] = reported(tmp_path, 10, split, pp=2, vpp=2)
    assert (found.code, found.message) == ("MC468", f"`split` of `trainer` {message}")
    assert found.help == "nearest that fits: [3, 3, 2, 2]"
    assert found.seconds[0].label == "pp 2 x vpp 2 = 4"


def test_an_uneven_division_that_nothing_states_is_a_warning(tmp_path: Path) -> None:
    [found] = reported(tmp_path, 10, pp=4)
    assert (found.code, found.severity) == ("MC437", "warning")
    assert found.help == "`args.split: cost` also counts the head, which the last stage has"


def test_fewer_layers_than_stages(tmp_path: Path) -> None:
    [found] = reported(tmp_path, 3, pp=4)
    assert found.code == "MC434" and "pp 2 x dp 4" in found.help


@pytest.mark.parametrize("kind", ["gravel", "delta"])
def test_an_architecture_without_a_plan(tmp_path: Path, kind: str) -> None:
    [found] = reported(tmp_path, 8, kind=kind, pp=2)
    assert found.code == "MC469" and f"`{kind}`" in found.message
    assert found.help == "nearest that fit: dp 8"
    assert reported(tmp_path, 8, kind=kind, fsdp=8) == []


def test_an_unknown_architecture_is_a_note(tmp_path: Path) -> None:
    [found] = reported(tmp_path, 8, kind="lava", pp=2)
    assert (found.code, found.severity) == ("MC440", "note")
