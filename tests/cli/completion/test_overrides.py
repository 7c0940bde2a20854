"""Completion of overrides: keys, values and config groups of the recipe that is typed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.cli.completion.line import candidates
from meshctl.recipe.compose.composition import compose
from meshctl.recipe.compose.folders import config_folders
from tests.cli.completion.completing import texts
from tests.examples import examples

# Overrides


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "",
            [
                "groups.",
                "components.",
                "pipeline.",
                "run.",
                "vars.",
                "name=",
                "seed=",
                "cluster.",
                "data@",
                "engine.",
                "engine=",
                "layout@",
            ],
        ),
        ("se", ["seed="]),
        ("groups.", ["groups.rollout.", "groups.train."]),
        ("groups.train.dev", ["groups.train.device_type="]),
        ("groups.train.env.", ["groups.train.env.A="]),
        ("components.actor.p", ["components.actor.parallel.", "components.actor.parallel="]),
        ("components.actor.parallel.f", ["components.actor.parallel.fsdp_size="]),
        ("components.sampler.args.", ["components.sampler.args.max_new_tokens="]),
        ("components.critic.", []),
        ("layout@components.a", ["layout@components.actor.parallel="]),
        ("data@", ["data@_global_="]),
        ("pipeline.publish.t", ["pipeline.publish.to="]),
        (
            "run.checkpoint.",
            [f"run.checkpoint.{key}" for key in ("async=", "best.", "best=", "every=", "keep=")],
        ),
        (
            "cluster.d",
            [f"cluster.{key}" for key in ("device_memory=", "devices_per_node=", "devices_per_node.")],
        ),
        ("cluster.devices_per_node.c", ["cluster.devices_per_node.cuda="]),
    ],
)
def test_keys(word: str, expected: list[str], place: Path) -> None:
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("+groups.judge.r", ["+groups.judge.ranks=", "+groups.judge.restartable="]),
        ("+groups.train.ra", []),
        ("+groups.train.co", ["+groups.train.colocate="]),
        ("+groups.train.en", ["+groups.train.env."]),
        ("++groups.train.ra", ["++groups.train.ranks="]),
        ("~", ["~groups.", "~components.", "~pipeline.", "~run", "~vars.", "~layout@", "~data@"]),
        ("~pipeline.m", ["~pipeline.metrics"]),
        ("~groups.train.d", ["~groups.train.device_type"]),
        ("~layout@", ["~layout@components.actor.parallel"]),
        ("+da", ["+data@"]),
    ],
)
def test_keys_that_are_added_or_deleted(word: str, expected: list[str], place: Path) -> None:
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("layout@components.actor.parallel=hs", ["hsdp", "hsdp_tp"]),
        ("data@_global_=", ["large", "small"]),
        ("groups.train.device_type=c", ["cuda", "cpu"]),
        ("components.actor.group=", ["rollout", "train"]),
        ("components.prompts.parallel=", ["sampler"]),
        ("components.actor.parallel.tp_size=", ["1", "2", "4", "8", "auto"]),
        ("components.sampler.frozen=", ["true", "false"]),
        ("groups.train.colocate=", ["rollout"]),
        ("pipeline.metrics.in=", ["batch", "rollouts", "publish"]),
        ("pipeline.metrics.collect=me", ["mean"]),
        ("pipeline.metrics.execute=", ["all", "first", "peer"]),
        ("pipeline.metrics.dispatch=sl", ["slice_dp", "slice"]),
        ("pipeline.metrics.when=", ["start", "end", "checkpoint"]),
        ("pipeline.rollouts.call=", ["prompts.", "sampler.", "actor."]),
        ("pipeline.rollouts.call=sampler.", ["sampler.sample", "sampler.greedy"]),
        ("pipeline.publish.to=s", ["sampler"]),
        ("run.stop.on=me", ["metrics."]),
        ("run.checkpoint.best.on=me", ["metrics."]),
        ("run.checkpoint.best.mode=", ["min", "max"]),
        ("run.steps=", ["170"]),
        ("run.steps=1", ["170"]),
        ("run.dir=", []),
    ],
)
def test_values(word: str, expected: list[str], place: Path) -> None:
    key = word.partition("=")[0]
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(f"{key}={value}" for value in expected)


def test_the_folder_of_a_run_is_a_recipe(place: Path) -> None:
    (place / "runs").mkdir()
    shutil.copy("grpo.yaml", "runs/recipe.yaml")
    assert texts("launch runs groups.t") == ["groups.train."]


def test_a_pipe_in_a_config_group_is_not_opened(place: Path) -> None:
    os.mkfifo(place / "conf" / "data" / "huge.yaml")
    assert texts("launch grpo.yaml data@_global_=") == ["data@_global_=large", "data@_global_=small"]


def test_the_values_of_included_files(place: Path) -> None:
    (place / "more.yaml").write_text(
        "defaults: [./grpo, base, data@vars.mine: large]\ngroups: {judge: {ranks: 1}}\n"
    )
    assert texts("launch more.yaml groups.") == ["groups.rollout.", "groups.train.", "groups.judge."]
    assert texts("launch more.yaml run.grace=") == ["run.grace=30"]
    (place / "more.yaml").write_text("defaults:\n  - ./grpo\n  - data@vars.mine: large\n")
    assert texts("launch more.yaml vars.mine.vars.") == ["vars.mine.vars.large="]


HALF = [
    "",
    "- a",
    "groups: {train: ",
    "a: &a [*a]",
    "groups: {a: !!python/object/apply:os.abort []}",
    "\xff",
    "defaults: [./bad]",
]


@pytest.mark.parametrize("text", HALF)
def test_a_recipe_that_is_being_written(text: str, place: Path) -> None:
    (place / "bad.yaml").write_bytes(text.encode("latin-1"))
    assert "run." in texts("launch bad.yaml ") and texts("launch bad.yaml run.ste") == ["run.steps="]


def test_a_bomb_is_cut(place: Path) -> None:
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (place / "bomb.yaml").write_text("\n".join(["a0: &a0 [1]", *lines, "run: {steps: 3}"]))
    assert "seed=" in texts("launch bomb.yaml ")


def test_descriptions(place: Path) -> None:
    found = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "")}
    assert found["groups."].startswith("Device groups by name")
    named = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "components.")}
    assert named["components.actor."] == "arithmetic.Actor"


def proposed(word: str, step: int) -> Iterator[str]:
    """Yields overrides that completion proposes after `word`, with values: every `step`-th below a first word."""
    longer = [one for one in candidates(["launch", "grpo.yaml"], word) if one.text.startswith(word)]
    for one in longer[:: step if word else 1]:
        if one.text == word:
            continue
        if one.text.endswith((".", "=", "@")):
            yield from proposed(one.text, step)
        elif "=" in one.text:
            yield one.text


@pytest.mark.hypothesis
def test_what_is_proposed_is_accepted(place: Path) -> None:
    """Every candidate is an existing key, option or package. Half of the candidates at each level are tried, and
    all in the nightly tests."""
    tried = list(proposed("", examples(2, 1)))
    assert len(tried) > 40
    for text in tried:
        found = compose(place / "grpo.yaml", [text], place, config_folders(place, ())).found
        assert not [one for one in found if one.primary and one.primary.file.startswith("override")], (
            text,
            found,
        )
