"""`home`: each message of MC534 and MC535. `tests/pipelines` runs what is accepted. Then inputs of a stage that
are joined by sample id: with `execute: peer`, whose samples do not move between workers, and from sources with the
same columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.diagnostics import Report
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import load
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


def report_of(recipe: dict[str, Any], folder: Path) -> Report:
    file = folder / "recipe.yaml"
    file.write_text(dump(recipe), encoding="utf-8")
    return load(file, [], folder, environ={}, path=[str(HERE)]).report


def reported(recipe: dict[str, Any], folder: Path) -> list[tuple[str, str, str]]:
    """Returns (message, marked text, label of the second span) of every error."""
    report = report_of(recipe, folder)
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


# Inputs that are joined


def joined(ranks: dict[str, int], stages: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe with a source in group `a` and a worker in each group."""
    groups = {name: {"ranks": count, "device_type": "cpu"} for name, count in ranks.items()}
    components: dict[str, Any] = {"source": {"_target_": "pieces.Source", "group": "a"}}
    for name in groups:
        components[name] = {"_target_": "pieces.Worker", "group": name}
    pipeline = {"s0": {"call": "source.next", "samples": 9}, **stages}
    return {"groups": groups, "components": components, "pipeline": pipeline, "run": {"steps": 1}}


def take(source: str, call: str = "b.take", **more: Any) -> dict[str, Any]:
    """Returns a stage that changes no numbers of samples."""
    return {"call": call, "in": source, "dispatch": {"allow_empty": True}, "samples": 9, **more}


def pair(one: str, other: str, execute: str = "peer") -> dict[str, Any]:
    inputs = {"one": one, "other": other}
    return {"call": "b.pair", "in": inputs, "dispatch": {"allow_empty": True}, "execute": execute}


BALANCED = {"dispatch": {"allow_empty": True, "balance": "tokens"}}


@pytest.mark.parametrize(
    ("stages", "is_reported"),
    [
        ({"s1": take("s0", execute="peer"), "s2": take("s0"), "s3": pair("s2", "s1")}, True),
        ({"s1": take("s0"), "s2": take("s0", "c.take"), "s3": pair("s1", "s2")}, True),
        ({"s1": take("s0"), "s2": take("s0", **BALANCED), "s3": pair("s1", "s2")}, True),
        ({"s1": take("s0"), "s2": take("s0"), "s3": pair("s1", "s2")}, False),
        ({"s1": take("s0", **BALANCED), "s2": take("s0", **BALANCED), "s3": pair("s1", "s2")}, False),
        ({"s1": take("s0"), "s2": take("s0", execute="peer"), "s3": pair("s1", "s2", "all")}, False),
    ],
)
def test_peers_by_different_ways_are_warned_of(
    stages: dict[str, Any], is_reported: bool, tmp_path: Path
) -> None:
    found = report_of(joined({"a": 2, "b": 3, "c": 2}, stages), tmp_path).diagnostics
    assert [one.severity for one in found if one.code == "MC536"] == ["warning"] * is_reported


@pytest.mark.parametrize(("kind", "is_wrong"), [("Text", True), ("Prompts", False)])
def test_two_sources_with_the_same_columns(tmp_path: Path, kind: str, is_wrong: bool) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "prompt": "b"}\n')
    recipe = joined({"a": 1, "b": 1}, {})
    for name, source in (("one", "Text"), ("other", kind)):
        args = {"path": str(tmp_path / "rows.jsonl"), "tokenizer": "byte"}
        recipe["components"][name] = {"_target_": f"meshctl.data.{source}", "group": "a", "args": args}
        recipe["pipeline"][name] = {"call": f"{name}.next", "samples": 9}
    recipe["pipeline"]["both"] = {"call": "b.take", "in": ["one", "other"]}
    found = report_of(recipe, tmp_path).diagnostics
    assert [one.message for one in found if one.code == "MC537"] == is_wrong * [
        "the sources `one` and `other` both have `input_ids` and `labels`"
    ]
