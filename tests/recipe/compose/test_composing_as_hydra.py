"""Composition with Hydra as the oracle: random recipes, defaults lists and overrides compose alike,
and the text at the place of each value is the value."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from meshctl.recipe.compose.yaml_tree import plain
from tests.examples import examples
from tests.recipe.compose.composing import SCALARS, check_spans, composed, write


def by_hydra(recipe: Path, overrides: list[str]) -> Any:
    """Returns the result of Hydra for the same files. Raises an exception if Hydra refuses them."""
    GlobalHydra.instance().clear()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            initialize_config_dir(str(recipe.parent), version_base="1.3"),
        ):
            return OmegaConf.to_container(hydra_compose(recipe.stem, overrides))
    except Exception as error:
        return error


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=3)
OPTIONS = ["red", "green", "blue"]
PACKAGES = st.sampled_from(["", "@vars.paint", "@vars.a", "@_global_", "@_here_"])


@st.composite
def defaults_lists(draw: st.DrawFn, includes: bool) -> list[Any]:
    """Draws a defaults list in any order. It contains each package of a group only once, as Hydra
    requires."""
    entries: list[Any] = [
        {f"paint{package}": draw(st.sampled_from(OPTIONS))}
        for package in draw(st.lists(PACKAGES, max_size=2, unique=True))
    ]
    if includes:
        # A file once: Hydra merges into what it has in its cache, and a second use of the file shows what
        # came in between.
        files = st.sampled_from(["extra", "more", "extra@vars.b"])
        entries += draw(st.lists(files, max_size=2, unique_by=lambda name: name.partition("@")[0]))
    entries = list(draw(st.permutations([*entries, "_self_"])))
    return entries if draw(st.booleans()) else [entry for entry in entries if entry != "_self_"]


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, str]:
    files: dict[str, Any] = {
        "recipe.yaml": {"defaults": draw(defaults_lists(includes=True)), "vars": draw(TREES)}
    }
    files["extra.yaml"] = {"defaults": draw(defaults_lists(includes=False)), "vars": draw(TREES)}
    files["more.yaml"] = {"vars": draw(TREES)}
    for option in OPTIONS:
        files[f"paint/{option}.yaml"] = draw(TREES)
    flow = draw(st.sampled_from([True, False, None]))
    return {
        name: yaml.safe_dump(content, sort_keys=False, default_flow_style=flow, width=1000)
        for name, content in files.items()
    }


PATHS = st.sampled_from(
    ["vars.a", "vars.b", "vars.c", "vars.a.b", "vars.paint.a", "vars.new", "paint.a", "vars.a.0"]
)
WRITTEN = st.sampled_from(
    [
        *("7", "1.5", "text", "true", "null", "[1,2]", "{a: 1}", "{a: {b: [x y, 2]}, c: t}"),
        *("'quoted, text'", "[ a , 'b]' ]", "${vars.b}", "010", "yes", "[]"),
    ]
)
OVERRIDES = st.one_of(
    st.builds(
        lambda sign, path, value: f"{sign}{path}={value}", st.sampled_from(["", "+", "++"]), PATHS, WRITTEN
    ),
    st.builds(lambda path: f"~{path}", PATHS),
    st.builds(
        lambda sign, package, option: f"{sign}paint{package}={option}",
        st.sampled_from(["", "+"]),
        PACKAGES,
        st.sampled_from(OPTIONS),
    ),
    st.builds(lambda package: f"~paint{package}", PACKAGES),
)


@settings(
    max_examples=examples(15, 600),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(files=recipes(), overrides=st.lists(OVERRIDES, max_size=4))
def test_composing_is_hydras(
    files: dict[str, str], overrides: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = write(tmp_path_factory.mktemp("oracle"), files)
    theirs = by_hydra(recipe, overrides)
    ours = composed(recipe, *overrides)
    errors = {found.code for found in ours.found if found.severity == "error"}
    if not isinstance(theirs, Exception) and errors != {
        "MC220"
    }:  # keys below a scalar: Hydra drops the scalar without a word
        assert not errors
        assert plain(ours.tree) == theirs
    check_spans(ours)


# Every form of an entry: `override`, `optional`, absolute and relative names, lists of options, packages,
# interpolations and headers. Each file has one key, so that the tree shows which files were merged where.

GROUPS = ["paint", "/paint", "paint/deep", "/paint/deep", "deep", "size"]
WHERE = st.sampled_from(["", "", "@vars.x", "@vars.y", "@_global_", "@_here_", "@_group_", "@_global_.vars"])
CHOSEN = st.one_of(
    st.sampled_from([*OPTIONS, *OPTIONS, None, "${size}", "${paint}", "${paint/deep}"]),
    st.lists(st.sampled_from(OPTIONS), max_size=2, unique=True),
)
CHOICES = st.builds(
    lambda word, group, package, option: {f"{word}{group}{package}": option},
    st.sampled_from(["", "", "", "override ", "optional "]),
    st.sampled_from(GROUPS),
    WHERE,
    CHOSEN,
)
INCLUDES = st.builds(
    lambda name, package: f"{name}{package}",
    st.sampled_from(["extra", "/extra", "/more", "more", "/paint/red", "/size/${size}"]),
    WHERE,
)
HEADERS = st.sampled_from(
    ["", "", "", "# @package _global_\n", "# @package vars.z\n", "# @package _global_.z\n"]
)


@st.composite
def nested_lists(draw: st.DrawFn) -> dict[str, str]:
    names = ["recipe", "extra", "more", "size/red", "size/blue"]
    names += [f"{folder}/{option}" for folder in ("paint", "paint/deep") for option in OPTIONS]
    files = {}
    for number, name in enumerate(names):
        is_included = name != "recipe"
        entries = draw(st.lists(st.one_of(CHOICES, CHOICES, INCLUDES), max_size=1 if is_included else 4))
        # Hydra drops the file itself if its list has only overrides and the command line adds an entry.
        has_own = any(not str(entry).startswith("{'override ") for entry in entries)
        itself = [] if has_own and draw(st.booleans()) else ["_self_"]
        content: dict[str, Any] = {"defaults": [*itself, *entries]} if entries else {}
        content["vars" if name == "recipe" else f"k{number}"] = {"n": number}
        header = draw(HEADERS) if is_included else ""
        files[f"{name}.yaml"] = header + yaml.safe_dump(content, sort_keys=False)
    return files


CHOICES_OF_COMMAND = st.builds(
    lambda sign, group, package, option: f"{sign}{group}{package}" + (f"={option}" if sign != "~" else ""),
    st.sampled_from(["", "", "+", "~"]),
    st.sampled_from(["paint", "paint/deep", "size"]),
    st.sampled_from(["", "@vars.x", "@_global_", "@paint"]),
    st.sampled_from([*OPTIONS, "[red,blue]", "[]"]),
)


@settings(
    max_examples=examples(20, 3000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(files=nested_lists(), overrides=st.lists(CHOICES_OF_COMMAND, max_size=2))
def test_defaults_lists_are_followed_as_by_hydra(
    files: dict[str, str], overrides: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = write(tmp_path_factory.mktemp("oracle"), files)
    theirs = by_hydra(recipe, overrides)
    ours = composed(recipe, *overrides)
    errors = {found.code for found in ours.found if found.severity == "error"}
    # Hydra accepts a group or an option that does not exist in an entry that has no effect.
    if not isinstance(theirs, Exception) and not errors & {"MC201", "MC202"}:
        assert not errors
        assert plain(ours.tree) == theirs
    check_spans(ours)


def test_hydra_refuses_what_we_refuse(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"recipe.yaml": "vars: {a: 1, l: [1]}\n", "paint/red.yaml": "x: 1\n"})
    wrong = (
        "vars.b=1",
        "+vars.a=2",
        "~vars.b",
        "paint=red",
        "~paint",
        "vars.l.3=1",
        "nope@x=red",
        "vars.a=1,2",
    )
    for override in (*wrong, "a b", "+paint=blue"):
        assert isinstance(by_hydra(recipe, [override]), Exception), override
        assert [found for found in composed(recipe, override).found if found.severity == "error"], override
