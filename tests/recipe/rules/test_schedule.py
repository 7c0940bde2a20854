"""The rules about when stages run, compared with simulated runs: exactly the stages that never or seldom run
are reported."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.recipe.rules import Facts, rules_of, schedule
from tests.examples import examples
from tests.recipe.rules.facts import facts_of

LONG = 60
"""Number of steps, enough for all patterns of such small periods."""
Recipe = dict[str, Any]


def ran(recipe: Recipe, steps: int) -> dict[str, list[int]]:
    """Returns the steps in which each stage runs, as the loop of a worker decides."""
    checkpoint = recipe["run"].get("checkpoint")
    every = checkpoint["every"] if checkpoint else 0
    found: dict[str, list[int]] = {name: [] for name in recipe["pipeline"]}
    for step in range(1, steps + 1):
        saves = checkpoint is not None and (step == steps or (every > 0 and step % every == 0))
        times = {"start": step == 1, "end": step == steps, "checkpoint": saves}
        now = set()
        for name, stage in recipe["pipeline"].items():
            due = times[stage["when"]] if "when" in stage else step % stage.get("every", 1) == 0
            if due and all(other in now for other in takes(stage)):
                now.add(name)
                found[name].append(step)
    return found


def takes(stage: dict[str, Any]) -> list[str]:
    return list(stage.get("in", {}).values())


def messages_of(facts: Facts, code: str) -> dict[str, str]:
    """Returns stage -> message of the rules."""
    found = [one for rule in rules_of(schedule) for one in rule(facts) if one.code == code]
    return {re.findall(r"stage `(\w+)`", one.message)[0]: one.message for one in found}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    pipeline: dict[str, Any] = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        few = draw(st.lists(st.sampled_from(sorted(pipeline)), max_size=2, unique=True)) if pipeline else []
        stage: dict[str, Any] = {
            "call": "x.y",
            **({"in": {f"p{i}": other for i, other in enumerate(few)}} if few else {"samples": 1}),
        }
        times = [
            {},
            {},
            *({"every": n} for n in (2, 3, 4)),
            *({"when": n} for n in ("start", "end", "checkpoint")),
        ]
        stage |= draw(st.sampled_from(times))
        pipeline[name] = stage
    run: dict[str, Any] = {"steps": draw(st.integers(1, 14))} if draw(st.integers(0, 3)) else {}
    if draw(st.booleans()):
        run["checkpoint"] = {"every": draw(st.integers(0, 4))}
    components = {"x": {"_target_": "x.X", "group": "g"}}
    return {
        "groups": {"g": {"ranks": 1, "device_type": "cpu"}},
        "components": components,
        "pipeline": pipeline,
        "run": run,
    }


@settings(max_examples=examples(40, 300))
@given(recipes())
def test_what_never_runs_is_reported_once(recipe: Recipe) -> None:
    facts, steps = facts_of(recipe), recipe["run"].get("steps", 0)
    never, not_within = messages_of(facts, "MC544"), messages_of(facts, "MC545")
    whole = [ran(recipe, steps)] if steps else [ran(recipe, many) for many in range(2, LONG)]
    idle = {name for name in recipe["pipeline"] if not any(found[name] for found in whole)}
    causes = {name for name in idle if not idle & set(takes(recipe["pipeline"][name]))}
    assert causes <= never.keys() | not_within.keys() <= idle, (never, not_within, idle)
    assert not never.keys() & not_within.keys()
    for name in never:
        assert not any(ran(recipe, many)[name] for many in range(2, LONG)), never[name]


@settings(max_examples=examples(40, 300))
@given(recipes())
def test_a_stage_that_runs_less_often_than_stated_is_reported_with_its_real_interval(recipe: Recipe) -> None:
    found = messages_of(facts_of(recipe), "MC548").items()
    messages = {name: message for name, message in found if "has `every:" in message}
    long = ran(recipe, LONG)
    for name, stage in recipe["pipeline"].items():
        at = {other for other in (name, *upstream(recipe, name)) if "when" in recipe["pipeline"][other]}
        if "every" in stage and not at:
            really = long[name][0]
            assert long[name] == list(range(really, LONG + 1, really))
            assert (name in messages) == (really != stage["every"])
            assert name not in messages or f"runs every {really} steps, when" in messages[name]
        else:
            assert name not in messages


def upstream(recipe: Recipe, name: str) -> set[str]:
    direct = takes(recipe["pipeline"][name])
    return {*direct, *(other for before in direct for other in upstream(recipe, before))}


@settings(max_examples=examples(40, 300))
@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 14), st.none() | st.integers(0, 5))
def test_weights_that_never_arrive_are_reported(every: int, lag: int, steps: int, saves: int | None) -> None:
    sync = {"sync": "x", "to": "y", "every": every, "max_staleness": every - 1 + lag}
    components = {name: {"_target_": "x.X", "group": "g"} for name in "xy"}
    run = {"steps": steps, **({} if saves is None else {"checkpoint": {"every": saves}})}
    groups = {"g": {"ranks": 1, "device_type": "cpu"}}
    facts = facts_of({"groups": groups, "components": components, "pipeline": {"s": sync}, "run": run})
    sent: list[int] = []
    arrived = 0
    for step in range(1, steps + 1):
        if step % every == 0:
            sent.append(step)
        arrived += any(given <= step - lag for given in sent)
        arrived += bool(saves and step % saves == 0 and step < steps and sent)
    codes = {one.code for rule in rules_of(schedule) for one in rule(facts)}
    assert ("MC555" in codes) == bool(sent and not arrived)
