"""Inputs of a stage with `execute: peer`: a recipe is refused exactly if it fails in the first step, on the
in-memory engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic
from meshctl.plan.resolve import resolve
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import Loaded, load
from meshctl.runtime.instantiate import make
from tests.examples import examples
from tests.paths import LAUNCHED as HERE
from tests.runtime import in_process


def recipe_of(ranks: dict[str, int], stages: dict[str, Any], **layout: int) -> dict[str, Any]:
    """Returns a recipe with a source in group `a` and a worker in each group."""
    groups = {name: {"ranks": count, "device_type": "cpu"} for name, count in ranks.items()}
    components: dict[str, Any] = {"source": {"_target_": "pieces.Source", "group": "a"}}
    for name in groups:
        components[name] = {"_target_": "pieces.Worker", "group": name}
    components["b"]["parallel"] = layout
    pipeline = {"s0": {"call": "source.next", "samples": 9}, **stages}
    return {"groups": groups, "components": components, "pipeline": pipeline, "run": {"steps": 1}}


def loaded(recipe: dict[str, Any], folder: Path) -> Loaded:
    file = folder / "recipe.yaml"
    file.write_text(dump(recipe), encoding="utf-8")
    return load(file, [], folder, environ={}, path=[str(HERE)])


def found_in(recipe: dict[str, Any], folder: Path) -> list[Diagnostic]:
    return [one for one in loaded(recipe, folder).report.diagnostics if one.code == "MC536"]


def take(source: str, call: str = "b.take", **more: Any) -> dict[str, Any]:
    """Returns a stage that changes no numbers of samples, unless it states `samples`."""
    return {"call": call, "in": source, "dispatch": {"allow_empty": True}, "samples": 9, **more}


def pair(one: str, other: str, call: str = "b.pair") -> dict[str, Any]:
    stage = take("", call, execute="peer", samples=0)
    return {
        **{key: stage[key] for key in ("call", "dispatch", "execute")},
        "in": {"one": one, "other": other},
    }


PEER = {"execute": "peer"}
BALANCED = {"dispatch": {"allow_empty": True, "balance": "tokens"}}
HOME = {"dispatch": {"allow_empty": True, "home": "s1"}}


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        (
            {"s1": take("s0", **PEER), "s2": take("s0"), "s3": pair("s2", "s1")},
            "rank 1 of `b` receives sample 5 of `s2`, but not that of `s1`",
        ),
        ({"s1": take("s0", **PEER), "s2": take("s1", **PEER), "s3": pair("s2", "s1")}, ""),
        (
            {"s1": take("s0"), "s2": take("s0", **BALANCED), "s3": pair("s1", "s2")},
            "those of `s2` are on other",
        ),
        (
            {
                "s1": take("s0"),
                "s2": take("s0", **BALANCED),
                "s3": take("s2", **PEER),
                "s4": pair("s3", "s1"),
            },
            "those of `s3` are on other",
        ),
        ({"s1": take("s0"), "s2": take("s0", **BALANCED), "s3": take("s2"), "s4": pair("s3", "s1")}, ""),
        ({"s1": take("s0", **PEER), "s2": take("s1", **HOME), "s3": pair("s2", "s1")}, ""),
        ({"s1": take("s0", execute="first"), "s2": take("s0"), "s3": pair("s2", "s1")}, ""),
        (
            {"s1": take("s0", "c.take"), "s2": take("s0"), "s3": pair("s2", "s1")},
            "3 workers produce one, 2 the other",
        ),
        ({"s1": take("s0", "c.take"), "s2": take("s0"), "s3": pair("s2", "s1", "d.pair")}, ""),
    ],
)
def test_each_message(stages: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Group `d` has one worker, which receives all samples."""
    found = found_in(recipe_of({"a": 2, "b": 3, "c": 2, "d": 1}, stages), tmp_path)
    assert [one.severity for one in found] == ["error"] * bool(why)
    assert all(why in one.message and one.help.startswith("write `execute: all`") for one in found)


def test_a_number_that_only_the_source_states_leads_to_a_warning(tmp_path: Path) -> None:
    stages = {"s1": take("s0", **PEER), "s2": take("s0"), "s3": pair("s2", "s1")}
    del stages["s2"]["samples"]
    [found] = found_in(recipe_of({"a": 2, "b": 3}, stages), tmp_path)
    assert found.severity == "warning"
    assert [second.label for second in found.seconds] == ["`execute: peer` keeps the shares of its input"]


SHORT = {
    "s1": take("s0", "a.take", samples=8),
    "s2": take("s0", "b.take", samples=8),
    "s3": take("s2", "a.take", samples=8, **PEER),
    "s4": pair("s1", "s3", "a.pair"),
}


@pytest.mark.parametrize("length", [16, 14])
def test_shares_that_differ_only_in_a_short_last_batch_lead_to_a_warning(tmp_path: Path, length: int) -> None:
    """8 samples are 2 for each of the 4 ranks of `a` both ways; 6 are 2, 2, 1, 1 or, by way of `b`, 2, 1, 2, 1."""
    recipe = recipe_of({"a": 4, "b": 2}, SHORT)
    recipe["components"]["source"] = {"_target_": "pieces.Limited", "group": "a", "args": {"length": length}}
    recipe["pipeline"]["s0"]["samples"] = 8
    del recipe["run"]["steps"]
    read = loaded(recipe, tmp_path)
    [found] = [one for one in read.report.diagnostics if one.code == "MC536"]
    assert found.severity == "warning"
    assert found.message.endswith("not that of `s3`, if the data of `s0` end with a batch of 2")
    outcome = in_memory(read)
    assert bool(outcome.faults) == (length == 14)


def in_memory(read: Loaded) -> in_process.Outcome:
    plan = resolve(read.recipe, read.endpoints)
    called = {
        component.name: [stage.method for stage in plan.stages if stage.component == component.name]
        for component in plan.components
    }

    def component(name: str, rank: int) -> Any:
        placed = plan.component(name)
        return make(placed, called[name], [str(HERE)])

    return in_process.run(plan, component)


# Each refused recipe fails in a run


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a source, some stages, and last a stage that takes two of them."""
    ranks = {name: draw(st.integers(1, 4)) for name in "abc"}
    counts = {"s0": 9}
    homes: dict[str, list[dict[str, Any]]] = {"b": [{}], "c": [{}]}
    stages: dict[str, Any] = {}
    for number in range(1, draw(st.integers(3, 5))):
        name, component = f"s{number}", draw(st.sampled_from("bbc"))
        before, method = draw(st.sampled_from([*counts])), draw(st.sampled_from(["take", "take", "thrice"]))
        words = draw(st.sampled_from([{}, {"split_groups": True}, *homes[component]]))
        if "home" in words:
            before = words["home"]
        counts[name] = counts[before] * (3 if method == "thrice" else 1)
        stages[name] = {
            "call": f"{component}.{method}",
            "in": before,
            "samples": counts[name],
            "dispatch": {"allow_empty": True, **words},
            "execute": "all" if "home" in words else draw(st.sampled_from(["all", "peer", "peer", "first"])),
        }
        homes[component].append({"home": name})
    pairs = [(one, other) for one in counts for other in counts if one != other]
    alike = [(one, other) for one, other in pairs if counts[one] == counts[other]]
    one, other = draw(st.sampled_from(alike or [("s0", "s0")]))
    stages["last"] = pair(one, other, f"{draw(st.sampled_from('bc'))}.pair")
    layout = draw(st.sampled_from([{}, {}, {}, {"tp_size": ranks["b"]}, {"pp_size": ranks["b"]}]))
    return recipe_of(ranks, stages, **layout)


@settings(max_examples=examples(30, 100))
@given(recipes())
def test_peers_are_refused_exactly_if_they_fail(
    tmp_path_factory: pytest.TempPathFactory, recipe: dict[str, Any]
) -> None:
    read = loaded(recipe, tmp_path_factory.mktemp("joins"))
    codes = {one.code for one in read.report.diagnostics}
    has_others = {one.code for one in read.report.errors} - {"MC536"} or "MC538" in codes
    if has_others or any("workers produce one" in one.message for one in read.report.errors):
        event("not compared")
        return
    is_refused = "MC536" in {one.code for one in read.report.errors}
    event(f"refused: {is_refused}")
    outcome = in_memory(read)
    assert bool(outcome.faults) == is_refused, f"{dump(recipe)}\n{outcome.faults}"


@pytest.mark.parametrize(("kind", "is_wrong"), [("Text", True), ("Prompts", False)])
def test_two_sources_with_the_same_columns(tmp_path: Path, kind: str, is_wrong: bool) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "prompt": "b"}\n')
    recipe = recipe_of({"a": 1, "b": 1}, {})
    for name, source in (("one", "Text"), ("other", kind)):
        args = {"path": str(tmp_path / "rows.jsonl"), "tokenizer": "byte"}
        recipe["components"][name] = {"_target_": f"meshctl.data.{source}", "group": "a", "args": args}
        recipe["pipeline"][name] = {"call": f"{name}.next", "samples": 9}
    recipe["pipeline"]["both"] = {"call": "b.take", "in": ["one", "other"]}
    found = [one for one in loaded(recipe, tmp_path).report.diagnostics if one.code == "MC537"]
    assert [one.message for one in found] == is_wrong * [
        "the sources `one` and `other` both have `input_ids` and `labels`"
    ]
