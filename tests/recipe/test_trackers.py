"""`run.track`: its forms, and what is wrong in it."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.diagnostics import Span
from meshctl.plan.model import as_data, from_data
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.reader import read
from meshctl.run.settings import Run, Track

HERE = Span("recipe.yaml", 1, 1)


def reading(track: Any) -> tuple[Run, list[tuple[str, str, str]]]:
    found = read(of_plain({"run": {"track": track}}, HERE), "x")
    return found.recipe.run, [(one.code, one.message, one.help) for one in found.found]


@pytest.mark.parametrize(
    ("track", "found"),
    [
        ("wandb", [("wandb", {})]),
        (["tensorboard", {"mlflow": {"uri": "x"}}], [("tensorboard", {}), ("mlflow", {"uri": "x"})]),
        ({"tensorboard": None, "wandb": {"patience": "5m"}}, [("tensorboard", {}), ("wandb", {"patience": 300.0})]),
        ({"wandb": True, "mlflow": False}, [("wandb", {})]),
        ([{"wandb": {"tags": ["a", "b"], "mode": "offline"}}], [("wandb", {"tags": ("a", "b"), "mode": "offline"})]),
        (["my.own:Csv", {"a:B": {"x": [1, {"y": 2}]}}], [("my.own:Csv", {}), ("a:B", {"x": [1, {"y": 2}]})]),
        (False, []),
        (None, []),
        ([], []),
    ],
)  # fmt: skip
def test_forms(track: Any, found: list[tuple[str, dict[str, Any]]]) -> None:
    run, wrong = reading(track)
    assert not wrong and [(one.name, one.options) for one in run.track] == found
    assert from_data(Run, as_data(run)).track == tuple(
        Track(one.name, {key: list(v) if isinstance(v, tuple) else v for key, v in one.options.items()})
        for one in run.track
    )


@pytest.mark.parametrize(
    ("track", "code", "message", "help"),
    [
        ("wandbb", "MC102", "`wandbb` is not a tracker", "did you mean `wandb`?"),
        (["tensorbord"], "MC102", "`tensorbord` is not a tracker", "did you mean `tensorboard`?"),
        (["wandb", {"wandb": {}}], "MC102", "`wandb` is listed twice in `track`", ""),
        ({"wandb": {"projct": "x"}}, "MC101", "`projct` is not an option of `wandb`", "did you mean `project`?"),
        ([{"mlflow": {"tracking_uri": "x"}}], "MC101", "`tracking_uri` is not an option of `mlflow`", "`uri`"),
        ({"wandb": {"mode": "offlin"}}, "MC102", "`offlin` is not a mode of wandb", "`offline`?"),
        ({"wandb": {"api_key": "abcdefgh1"}}, "MC101", "`wandb` has no option `api_key`", "set WANDB_API_KEY in"),
        ({"mlflow": {"uri": "http://me:passw0rd@h"}}, "MC102", "`uri` of `mlflow` contains a secret", "MLFLOW_"),
        (3, "MC102", "`track` must be a list of trackers, not 3", "write [tensorboard]"),
        ([3], "MC102", "`track.0` must be a tracker, not 3", "write NAME, or {NAME: {OPTION: VALUE}}"),
        ([{"wandb": {}, "mlflow": {}}], "MC102", "`track.0` must be a tracker", "{NAME: {OPTION: VALUE}}"),
        ({"wandb": "x"}, "MC102", "`wandb` must be a mapping", "write {wandb: {OPTION: VALUE}}"),
        ({"wandb": {"patience": "soon"}}, "MC102", "`patience` must be", ""),
        ({"a:B": {"x": "???"}}, "MC103", "", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_once(track: Any, code: str, message: str, help: str) -> None:
    _, [found] = reading(track)
    assert found[0] == code and message in found[1] and help in found[2]
