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
from tests.cli.completion.conftest import texts
from tests.examples import examples

KEYS = {
    "": "groups. components. pipeline. run. vars. name= seed= cluster. data@ engine. engine= layout@",
    "se": "seed=",
    "groups.": "groups.rollout. groups.train.",
    "groups.train.dev": "groups.train.device_type=",
    "groups.train.env.": "groups.train.env.A=",
    "components.actor.p": "components.actor.parallel. components.actor.parallel=",
    "components.actor.parallel.f": "components.actor.parallel.fsdp_size=",
    "components.sampler.args.": "components.sampler.args.max_new_tokens=",
    "components.critic.": "",
    "layout@components.a": "layout@components.actor.parallel=",
    "data@": "data@_global_=",
    "pipeline.publish.t": "pipeline.publish.to=",
    "run.checkpoint.": " ".join(
        f"run.checkpoint.{key}" for key in ("async=", "best.", "best=", "every=", "keep=")
    ),
    "cluster.devices_per_node": "cluster.devices_per_node= cluster.devices_per_node.",
    "cluster.devices_per_node.c": "cluster.devices_per_node.cuda=",
    # keys that are added or deleted
    "+groups.judge.r": "+groups.judge.ranks= +groups.judge.restartable=",
    "+groups.train.ra": "",
    "+groups.train.co": "+groups.train.colocate=",
    "+groups.train.en": "+groups.train.env.",
    "++groups.train.ra": "++groups.train.ranks=",
    "~": "~groups. ~components. ~pipeline. ~run ~vars. ~layout@ ~data@",
    "~pipeline.m": "~pipeline.metrics",
    "~groups.train.d": "~groups.train.device_type",
    "~layout@": "~layout@components.actor.parallel",
    "+da": "+data@",
}
VALUES = {
    "layout@components.actor.parallel=hs": "hsdp hsdp_tp",
    "data@_global_=": "large small",
    "groups.train.device_type=c": "cuda cpu",
    "components.actor.group=": "rollout train",
    "components.sampler.frozen=": "true false",
    "groups.train.colocate=": "rollout",
    "pipeline.metrics.in=": "batch rollouts publish",
    "pipeline.metrics.collect=me": "mean",
    "run.steps=": "",
    "pipeline.metrics.execute=": "all first peer",
    "pipeline.metrics.when=": "start end checkpoint",
    "pipeline.rollouts.call=": "prompts. sampler. actor.",
    "pipeline.publish.to=s": "sampler",
    "run.checkpoint.best.mode=": "min max",
}


@pytest.mark.parametrize("word", [*KEYS, *VALUES])
def test_candidates(word: str, place: Path) -> None:
    key = word.partition("=")[0]
    expected = KEYS[word].split() if word in KEYS else [f"{key}={value}" for value in VALUES[word].split()]
    assert sorted(texts(f"launch grpo.yaml {word}")) == sorted(expected)


def test_descriptions(place: Path) -> None:
    found = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "")}
    assert found["groups."].startswith("Device groups by name")
    named = {one.text: one.description for one in candidates(["launch", "grpo.yaml"], "components.")}
    assert named["components.actor."] == "arithmetic.Actor"


def test_recipes_that_are_folders_of_runs_include_files_or_have_a_pipe_among_them(place: Path) -> None:
    (place / "runs").mkdir()
    shutil.copy("grpo.yaml", "runs/recipe.yaml")
    assert texts("launch runs groups.t") == ["groups.train."]
    more = "defaults: [./grpo, base, data@vars.mine: large]\ngroups: {judge: {ranks: 1}}\n"
    (place / "more.yaml").write_text(more)
    assert texts("launch more.yaml groups.") == ["groups.rollout.", "groups.train.", "groups.judge."]
    (place / "more.yaml").write_text("defaults:\n  - ./grpo\n  - data@vars.mine: large\n")
    assert texts("launch more.yaml vars.mine.vars.") == ["vars.mine.vars.large="]
    os.mkfifo(place / "conf" / "data" / "huge.yaml")
    assert texts("launch grpo.yaml data@_global_=") == ["data@_global_=large", "data@_global_=small"]


ALIASES = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
HALF = {
    "empty": "",
    "list": "- a",
    "open": "groups: {train: ",
    "circle": "a: &a [*a]",
    "tag": "groups: {a: !!python/object/apply:os.abort []}",
    "bytes": "\xff",
    "itself": "defaults: [./bad]",
    "bomb": "\n".join(["a0: &a0 [1]", *ALIASES, "run: {steps: 3}"]),
}


@pytest.mark.parametrize("text", HALF)
def test_a_recipe_that_is_being_written(text: str, place: Path) -> None:
    (place / "bad.yaml").write_bytes(HALF[text].encode("latin-1"))
    assert "run." in texts("launch bad.yaml ") and texts("launch bad.yaml run.ste") == ["run.steps="]


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
    """Every candidate is an existing key, option or package. A third of the candidates at each level are tried, and
    all in the nightly tests."""
    tried = list(proposed("", examples(3, 1)))
    assert len(tried) > 10
    for text in tried:
        found = compose(place / "grpo.yaml", [text], place, config_folders(place, ())).found
        wrong = [one for one in found if one.primary and one.primary.file.startswith("override")]
        assert not wrong, (text, found)
