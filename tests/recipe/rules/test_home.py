"""`home`: each message of MC534 and MC535. `tests/pipelines` runs what is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import Loaded, load
from tests.paths import LAUNCHED as HERE

FIRST = {"call": "maker.fill", "in": "batch"}


def recipe_of(stages: dict[str, Any], maker: Any = None, user: Any = "maker", **more: Any) -> dict[str, Any]:
    """Returns a recipe with a source, and with two components of one group that keep samples and expect them
    again."""
    components = {
        "source": {"_target_": "caches.Source", "group": "g"},
        "maker": {"_target_": "caches.Cache", "group": "g", "parallel": maker or {}},
        "user": {"_target_": "caches.Cache", "group": "g", "parallel": user},
        "stranger": {"_target_": "caches.Cache", "group": "other"},
    }
    groups = {name: {"ranks": ranks, "device_type": "cpu"} for name, ranks in (("g", 4), ("other", 2))}
    pipeline = {"batch": {"call": "source.next", "samples": 8, **more}, **stages}
    return {"groups": groups, "components": components, "pipeline": pipeline, "run": {"steps": 2}}


def loaded(recipe: dict[str, Any], folder: Path) -> Loaded:
    file = folder / "recipe.yaml"
    file.write_text(dump(recipe), encoding="utf-8")
    return load(file, [], folder, environ={}, path=[str(HERE)])


def reported(recipe: dict[str, Any], folder: Path) -> list[tuple[str, str, str]]:
    """Returns (message, marked text, label of the second span) of every error."""
    report = loaded(recipe, folder).report
    assert {error.code for error in report.errors} <= {"MC534", "MC535"}
    lines = dict(report.sources)
    found = []
    for error in report.errors:
        span = error.primary
        assert span is not None
        place = lines[span.file][span.line - 1][span.column - 1 :][: span.width]
        found.append((error.message, place, " ".join(second.label for second in error.seconds)))
    return found


def look(home: str, **more: Any) -> dict[str, Any]:
    return {"call": "user.look", "in": "first", "dispatch": {"home": home, **more}}


ALIKE = "the samples of stage `again` come from"
PEER = "`execute: peer` sends the samples of stage `again` to their producer's workers, not to the rank of `home`"
FAR = {"far": {"call": "stranger.change", "in": "first"}, "again": {**look("far"), "in": "far"}}
FIRST_ONLY = {**FIRST, "execute": "first"}
EMPTY = {"samples": 3, "dispatch": {"allow_empty": True}}
JOINED = {
    "loss": {"call": "maker.loss", "in": "first"},
    "then": {"call": "maker.look", "in": {"loss": "loss", "batch": "first"}},
    "again": {**look("first"), "in": "then"},
}
OF_INPUT = {"call": "user.look", "in": {"batch": {"from": "first", "dispatch": {"home": "batch"}}}}
MAKER, SPLIT = "`maker` has {} data ranks", {"maker": {"tp_size": 2}, "user": {"dp_size": 4}}
NONE = "the samples of `first` do not come from `{}`, so none has a rank there"


@pytest.mark.parametrize(
    ("stages", "layouts", "expected"),
    [
        ({"again": look("first")}, {}, None),
        ({"again": look("frist")}, {}, ("stage `frist` of `home` does not exist", "frist", "")),
        ({"again": look("again")}, {}, (NONE.format("again"), "again", "")),
        ({"other": FIRST, "again": look("other")}, {}, (NONE.format("other"), "other", "")),
        (FAR, {}, ("`home` of stage `again` (on `g`) must be a stage of the same group", "far", "`far` runs on `other`")),
        ({"again": {**look("first"), "execute": "peer"}}, {}, (PEER, "first", MAKER.format(4))),
        ({"again": look("first")}, {"user": {"tp_size": 2}}, (f"{ALIKE} 4 data ranks of `maker`, but `user` has 2 shares", "first", MAKER.format(4))),
        ({"again": look("first")}, SPLIT, (f"{ALIKE} 2 data ranks of `maker`, but `user` has 4 shares", "first", MAKER.format(2))),
        ({"again": look("first", allow_empty=True)}, SPLIT, (f"{ALIKE} 2 data ranks of `maker`, and data rank 1 is worker 2 there, which has another share here", "first", MAKER.format(2))),
        ({"again": look("first", mode="all")}, {}, (f"{ALIKE} 4 data ranks of `maker`, but `user` has 1 share", "first", MAKER.format(4))),
        ({"first": FIRST_ONLY, "again": look("first")}, {}, (f"{ALIKE} 1 data rank of `maker`, but `user` has 4 shares", "first", "one worker produces its samples")),
        ({"first": FIRST_ONLY, "again": look("first", allow_empty=True)}, {}, None),
        ({"first": {**FIRST, **EMPTY}, "again": look("first")}, EMPTY, (f"{ALIKE} 4 data ranks of `maker`, some of which produce none", "first", "3 samples")),
        (JOINED, {}, None),
        ({"again": OF_INPUT}, {"user": {"tp_size": 2}}, (f"{ALIKE} 4 data ranks of `source`, but `user` has 2 shares", "batch", "`source` has 4 data ranks")),
    ],
)  # fmt: skip
def test_each_message(
    stages: dict[str, Any], layouts: dict[str, Any], expected: tuple[str, str, str] | None, tmp_path: Path
) -> None:
    assert reported(recipe_of({"first": FIRST, **stages}, **layouts), tmp_path) == (
        [expected] if expected else []
    )
