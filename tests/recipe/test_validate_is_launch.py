"""A recipe that `validate` accepts is resolved, starts and runs. For a recipe that it rejects, `launch`
starts nothing.

Recipes are those of `tests/pipelines`, with one value that is removed, added or replaced. An accepted recipe runs
on the in-memory engine, with its components. For a rejected recipe, `launch` ends before it creates a process,
socket or file. `tests/pipelines` runs the recipes as they were.

    pytest --hypothesis-profile=nightly tests/recipe/test_validate_is_launch.py     thousands of them
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshctl.cli.launch import Options, prepare
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.view.reports.text import text
from tests.examples import examples
from tests.pipelines.generate import scenarios
from tests.pipelines.model import Model
from tests.pipelines.run import Ran, in_threads, read
from tests.pipelines.shares import Fault

UNSOUND = {"MC536", "MC538"}
"""Warnings about samples that are lost, repeated or probably missing in an input, which cause an error only
in the run."""
KEYS: dict[str, dict[str, tuple[Any, ...]]] = {
    "groups": {"ranks": (1, 2, 3, 4)},
    "components": {"group": ("a", "b"), "parallel": ({}, {"tp_size": 2}, {"pp_size": 2}, {"fsdp_size": 2})},
    "pipeline": {
        "samples": (1, 2, 3, 6, 9),
        "dispatch": (
            "slice",
            "slice_dp",
            "all",
            {"balance": "tokens"},
            {"allow_empty": True},
            {"home": "s0"},
        ),
        "execute": ("all", "first", "peer"),
        "collect": ("flatten", "mean", "first", "none"),
        "every": (1, 2, 3),
        "when": ("start", "end"),
        "after": ("s0", "s1"),
        "in": ("s0", "s1", ["s0", "s1"]),
    },
}
"""Section -> its keys that are changed, with values that may fit."""
VALUES: tuple[Any, ...] = (
    *(
        0,
        1,
        2,
        3,
        7,
        -1,
        True,
        None,
        [],
        {},
        "nonsense",
        "s0",
        "s1",
        "s5",
        "a",
        "b",
        "slice",
        "slice_dp",
        "all",
    ),
    *("first", "peer", "none", "flatten", "mean", "last_pp", "start", "end", "checkpoint"),
    *({"tp_size": 2}, {"pp_size": 2}, {"balance": "tokens"}, {"home": "s0"}, {"allow_empty": False}),
)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a recipe in which one value is removed, added or replaced, and no metric is NaN."""
    recipe = draw(scenarios()).recipe
    for component in recipe["components"].values():
        component.get("args", {}).pop("nan_at", None)
    top = draw(st.sampled_from(sorted(KEYS)))
    name = draw(st.sampled_from(sorted(recipe[top])))
    key = draw(st.sampled_from(sorted({*recipe[top][name], *KEYS[top]})))
    item = {other: value for other, value in recipe[top][name].items() if other != key}
    if key not in recipe[top][name] or draw(st.booleans()):
        fitting = KEYS[top].get(key, VALUES) if draw(st.integers(0, 3)) else VALUES
        item[key] = draw(st.sampled_from(fitting))
    return {**recipe, top: {**recipe[top], name: item}}


RECORDED: list[str] = []
"""Audit events that must not happen for a rejected recipe."""
ACTS = (
    *("os.fork", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen", "socket.connect"),
    *("socket.bind", "os.mkdir"),
)


def _record(name: str, arguments: tuple[Any, ...]) -> None:
    if name in ACTS or (name == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        RECORDED.append(name)


def has_to_fail(recipe: dict[str, Any], ran: Ran) -> bool:
    """Returns whether the data are the reason, which are known in the run only."""
    try:
        return Model(recipe, ran.seen).run(None).may_fail
    except Fault:
        return True


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.addaudithook(_record)
    return tmp_path_factory.mktemp("recipes") / "recipe.yaml"


@settings(max_examples=examples(30, 2000), suppress_health_check=list(HealthCheck))
@given(recipes())
def test_what_is_accepted_runs_and_what_is_rejected_starts_nothing(
    file: Path, recipe: dict[str, Any]
) -> None:
    plan, report = read(recipe, file)
    if plan is None:
        RECORDED.clear()
        with redirect_stderr(io.StringIO()) as stderr:
            assert prepare(str(file), [], Options()) == (1, None)
        assert not RECORDED, RECORDED
        assert all(f"[{error.code}]" in stderr.getvalue() for error in report.errors[:50])
    elif not UNSOUND & {one.code for one in report.diagnostics}:
        ran = in_threads(plan)
        assert not ran.fault or has_to_fail(recipe, ran), f"{dump(recipe)}\n{text(report)}\n{ran.fault}"
