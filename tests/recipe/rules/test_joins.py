"""Inputs of a stage that are joined by sample id: with `execute: peer`, whose samples do not move between
workers, and from sources with the same columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import load
from tests.paths import LAUNCHED as HERE


def recipe_of(ranks: dict[str, int], stages: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe with a source in group `a` and a worker in each group."""
    groups = {name: {"ranks": count, "device_type": "cpu"} for name, count in ranks.items()}
    components: dict[str, Any] = {"source": {"_target_": "pieces.Source", "group": "a"}}
    for name in groups:
        components[name] = {"_target_": "pieces.Worker", "group": name}
    pipeline = {"s0": {"call": "source.next", "samples": 9}, **stages}
    return {"groups": groups, "components": components, "pipeline": pipeline, "run": {"steps": 1}}


def found_in(recipe: dict[str, Any], folder: Path, code: str) -> list[Diagnostic]:
    file = folder / "recipe.yaml"
    file.write_text(dump(recipe), encoding="utf-8")
    report = load(file, [], folder, environ={}, path=[str(HERE)]).report
    return [one for one in report.diagnostics if one.code == code]


def take(source: str, call: str = "b.take", **more: Any) -> dict[str, Any]:
    """Returns a stage that changes no numbers of samples."""
    return {"call": call, "in": source, "dispatch": {"allow_empty": True}, "samples": 9, **more}


def pair(one: str, other: str, execute: str = "peer") -> dict[str, Any]:
    inputs = {"one": one, "other": other}
    return {"call": "b.pair", "in": inputs, "dispatch": {"allow_empty": True}, "execute": execute}


PEER = {"execute": "peer"}
BALANCED = {"dispatch": {"allow_empty": True, "balance": "tokens"}}


@pytest.mark.parametrize(
    ("stages", "is_reported"),
    [
        ({"s1": take("s0", **PEER), "s2": take("s0"), "s3": pair("s2", "s1")}, True),
        ({"s1": take("s0"), "s2": take("s0", "c.take"), "s3": pair("s1", "s2")}, True),
        ({"s1": take("s0"), "s2": take("s0", **BALANCED), "s3": pair("s1", "s2")}, True),
        ({"s1": take("s0"), "s2": take("s0"), "s3": pair("s1", "s2")}, False),
        ({"s1": take("s0", **BALANCED), "s2": take("s0", **BALANCED), "s3": pair("s1", "s2")}, False),
        ({"s1": take("s0"), "s2": take("s0", **PEER), "s3": pair("s1", "s2", "all")}, False),
    ],
)
def test_peers_by_different_ways_are_warned_of(
    stages: dict[str, Any], is_reported: bool, tmp_path: Path
) -> None:
    found = found_in(recipe_of({"a": 2, "b": 3, "c": 2}, stages), tmp_path, "MC536")
    assert [one.severity for one in found] == ["warning"] * is_reported


@pytest.mark.parametrize(("kind", "is_wrong"), [("Text", True), ("Prompts", False)])
def test_two_sources_with_the_same_columns(tmp_path: Path, kind: str, is_wrong: bool) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "prompt": "b"}\n')
    recipe = recipe_of({"a": 1, "b": 1}, {})
    for name, source in (("one", "Text"), ("other", kind)):
        args = {"path": str(tmp_path / "rows.jsonl"), "tokenizer": "byte"}
        recipe["components"][name] = {"_target_": f"meshctl.data.{source}", "group": "a", "args": args}
        recipe["pipeline"][name] = {"call": f"{name}.next", "samples": 9}
    recipe["pipeline"]["both"] = {"call": "b.take", "in": ["one", "other"]}
    assert [one.message for one in found_in(recipe, tmp_path, "MC537")] == is_wrong * [
        "the sources `one` and `other` both have `input_ids` and `labels`"
    ]
