"""Instantiation of a `_target_`: it is searched in the recipe's folder first, and must derive from
Component."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.plan.model import Component as Placed
from meshctl.runtime.instantiate import TargetError, make, resolved
from meshctl.runtime.rank_context import RankContext
from meshctl.topology.mesh import DeviceMesh

SOURCE = """
from meshctl import Component, endpoint

class Good(Component):
    def __init__(self, size, key=None):
        self.size, self.key = size, key

    @endpoint(collect="mean")
    def go(self, batch): ...

    def plain(self): ...

class Bad: ...
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "a_target_module.py").write_text(SOURCE)
    (tmp_path / "needs.py").write_text("import a_module_that_is_not_there\n")
    path = list(sys.path)
    yield str(tmp_path)
    sys.path[:] = path
    sys.modules.pop("a_target_module", None)


def placed(target: str, **more: object) -> Placed:
    return Placed("actor", target, "train", DeviceMesh.from_sizes(), **more)  # type: ignore[arg-type]


def test_a_component_is_made_with_its_arguments(folder: str) -> None:
    made = make(placed("a_target_module.Good", args={"size": 3}), ["go"], [folder])
    assert made.size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "methods", "message"),
    [
        ("a_target_module.Bad", [], "is not a class that derives from meshctl.Component"),
        ("a_target_module.number", [], "is not a class that derives from meshctl.Component"),
        ("a_target_module.Gone", [], "module a_target_module has no 'Gone'"),
        ("nowhere_at_all.Thing", [], "no module 'nowhere_at_all'"),
        ("a_target_module.Good", ["plain"], "plain is not an endpoint"),
        ("a_target_module.Good", ["gone"], "gone is not an endpoint"),
    ],
)
def test_what_is_no_component_is_named(folder: str, target: str, methods: list[str], message: str) -> None:
    with pytest.raises(TargetError, match=message) as raised:
        make(placed(target, args={"size": 1}), methods, [folder])
    assert "component `actor`" in str(raised.value)


def test_a_module_that_itself_lacks_one_passes_through(folder: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        make(placed("needs.Thing"), [], [folder])


def test_a_decorator_that_differs_from_its_source_text_is_an_error(folder: str) -> None:
    make(
        placed("a_target_module.Good", args={"size": 1}, endpoints={"go": ("slice_dp", "mean", "all")}),
        ["go"],
        [folder],
    )
    with pytest.raises(TargetError, match="states dispatch, collect, execute slice_dp, mean, all"):
        make(
            placed("a_target_module.Good", args={"size": 1}, endpoints={"go": ("slice_dp", "sum", "all")}),
            ["go"],
            [folder],
        )


def test_the_folder_of_the_run_is_filled_in(folder: str) -> None:
    context = RankContext(run_dir=Path("/runs/x"))
    made = make(
        placed("a_target_module.Good", args={"size": ["{run_dir}/out", {"a": 3}]}), [], [folder], context
    )
    assert made.size == ["/runs/x/out", {"a": 3}]
    alone = make(placed("a_target_module.Good", args={"size": "{run_dir}/out"}), [], [folder])
    assert alone.size == "{run_dir}/out"


def test_references_to_the_environment_are_filled_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    monkeypatch.delenv("NO_KEY", raising=False)
    assert resolved({"a": ["x-${oc.env:A_KEY}", 3], "b": "${oc.env:NO_KEY,none}"}, "args") == {
        "a": ["x-secret", 3],
        "b": "none",
    }
    with pytest.raises(TargetError, match=r"args\.a: the environment variable NO_KEY is not set"):
        resolved({"a": "${oc.env:NO_KEY}"}, "args")
