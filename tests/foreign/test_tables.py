"""The tables of other systems: every row leads somewhere, and every key of a configuration has an end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from meshctl.diagnostics.codes import codes
from meshctl.foreign.convert import SKELETONS, skeleton_of
from meshctl.foreign.formula import Formula
from meshctl.foreign.lint import CODE
from meshctl.foreign.table import NAMES, Table, table
from meshctl.recipe.load import load
from meshctl.recipe.mistakes import FOREIGN
from tests.paths import ROOT

KEYS_MIN = {
    "verl": 150,
    "trl": 150,
    "axolotl": 150,
    "accelerate": 60,
    "torchtitan": 80,
    "nemo-rl": 100,
    "twinkle": 30,
}
"""The least number of rows of a table."""


def formulas(one: Table) -> Iterator[str]:
    yield from one.facts.values()
    yield from one.kinds.values()
    yield from (row.value for row in one.keys.values())
    for check in one.checks:
        yield check["unless"]
        for words in (check["say"], check.get("help", "")):
            yield from re.findall(r"\{([^{}]+)\}", words)
    yield from (
        found for words in one.codes.values() if words for found in re.findall(r"\{([^{}]+)\}", words)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_consistent(name: str) -> None:
    one = table(name)
    assert len(one.keys) >= KEYS_MIN[name] and one.title and one.version and one.marks
    for text in formulas(one):
        Formula(text)({})
    assert [row.part for row in one.keys.values() if row.part and not one.row(row.part)] == []
    assert [key for check in one.checks for key in check["at"].split() if not one.row(key)] == []
    assert set(one.codes) | {check.get("code", CODE) for check in one.checks} <= set(codes())
    assert set(one.kinds) <= {file.stem for file in SKELETONS.glob("*.yaml")}
    assert [
        key for key, row in one.keys.items() if row.lost and not row.lost[0].isalpha() and row.lost[0] != "`"
    ] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_places_of_rows_are_in_some_skeleton(name: str) -> None:
    """A misspelt component would leave a value out in silence."""
    one = table(name)
    skeletons = [skeleton_of(kind) for kind in one.kinds]
    parts = [part for skeleton in skeletons for part in (skeleton.get("parts") or {}).values()]
    items = {path for data in (*(one["recipe"] for one in skeletons), *parts) for path in named(data)}
    used = {part for skeleton in skeletons for part in (skeleton.get("parts") or {})}
    for key, row in one.keys.items():
        for to in row.to:
            top, *rest = to.split(".")
            assert (
                top in ("groups", "components", "pipeline")
                or not rest
                or top in ("run", "cluster", "vars", "engine")
            ), key
            assert top not in ("groups", "components", "pipeline") or (top, rest[0]) in items, f"{key}: {to}"
        assert {*row.uses} <= {name for part in used for name in part.split("+")}, key


def named(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for top in ("groups", "components", "pipeline"):
        yield from ((top, name) for name in data.get(top) or {})


@pytest.mark.parametrize("kind", sorted(file.stem for file in SKELETONS.glob("*.yaml")))
def test_a_skeleton_with_all_of_its_parts_has_no_unknown_keys(kind: str) -> None:
    from meshctl.foreign.convert import _merged
    from meshctl.foreign.write import text_of
    from meshctl.recipe.compose.folders import real

    skeleton = skeleton_of(kind)
    for parts in ((), tuple(skeleton.get("parts") or {})):
        recipe = skeleton["recipe"]
        for part in parts:
            recipe = _merged(recipe, skeleton["parts"][part])
        text = text_of(recipe, {})
        found = load(
            "recipe.yaml",
            ["run.steps=1"] * (kind != "program"),
            ROOT,
            held={real(ROOT / "recipe.yaml"): text.encode()},
        )
        assert {one.code for one in found.report.errors} & {
            "MC101",
            "MC102",
            "MC103",
            "MC505",
            "MC510",
            "MC511",
            "MC530",
        } == set()


OTHERWISE = {"reward_funcs", "precision", "max_completion_length", "num_generations"}
"""Words that mean something else under one of the systems' sections, such as the precision of a sampler."""


def test_the_words_that_validate_knows_are_in_the_tables_what_it_says() -> None:
    """`validate` explains a word of another system without the system's other keys."""
    compared = 0
    for key, row in (item for name in NAMES for item in table(name).keys.items()):
        word = key.rpartition(".")[2].lower()
        argument = FOREIGN.get(word, ("", ""))[0]
        paths = [to.split(".") for to in row.to if ".args." in to]
        if argument and paths and word not in OTHERWISE:
            compared += 1
            assert any(argument in path for path in paths), key
    assert compared > 150
