"""`run.track` and `run.trace`: their forms, and what is wrong in them."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.diagnostics import Span
from meshctl.plan.model import as_data, from_data
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.reader import read
from meshctl.run.settings import Run, Trace, Track

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


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([100, 110], Trace((100, 110))),
        ([7, 7], Trace((7, 7))),
        (7, Trace((7, 7))),
        ({"steps": [3, 5], "profiler": True}, Trace((3, 5), True)),
        ({"steps": 3}, Trace((3, 3))),
        (False, None),
        (None, None),
    ],
)
def test_a_trace_is_steps_or_a_mapping(written: object, expected: Trace | None) -> None:
    found = read(of_plain({"run": {"trace": written}}, HERE), "x")
    assert found.recipe.run.trace == expected
    assert not [one for one in found.found if "trace" in one.message]


@pytest.mark.parametrize(
    ("written", "message", "help"),
    [
        ([9, 3], "`trace` ends with step 3, before its first step 9", "write [3, 9]"),
        ([1, 2, 3], "`trace` has 3 numbers in place of two", "write [FIRST, LAST]"),
        ({"steps": []}, "`steps` has 0 numbers in place of two", "write [FIRST, LAST]"),
        ("some", "`trace` must be [FIRST, LAST], or one step, not the text `some`", ""),
        (0, "`trace` must be [FIRST, LAST], or one step, not 0", ""),
        ([1.5, 2], "`trace` must be a positive integer, not 1.5", ""),
        (True, "`trace` must be a mapping, not True", "write {steps: [FIRST, LAST]}"),
        ({"profiler": True}, "`run.trace` needs `steps`", "the first and the last step, as [FIRST, LAST]"),
    ],
)
def test_another_value_is_reported_once(written: object, message: str, help: str) -> None:
    found = read(of_plain({"run": {"trace": written}}, HERE), "x")
    [one] = [one for one in found.found if "trace" in one.message or "steps`" in one.message]
    assert (one.message, one.help) == (message, help)
    assert found.recipe.run.trace is None
