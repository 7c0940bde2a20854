"""The JSON Schema of recipes accepts every recipe that the reader accepts, and refuses all that a schema can
refuse."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from meshctl.diagnostics import Span
from meshctl.recipe import fields
from meshctl.recipe.compose.yaml_reader import read as read_text
from meshctl.recipe.compose.yaml_tree import Node, of_plain, plain
from meshctl.recipe.fields import SECTIONS, schema
from meshctl.recipe.mistakes import correct
from meshctl.recipe.reader import Read, read
from meshctl.recipe.section_types import layouts
from meshctl.recipe.templates import KINDS, Choice, files
from meshctl.topology.cluster import DEVICE_TYPES
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE
from tests.paths import ROOT
from tests.recipe.test_fields import PATHS

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = schema()
CHECKER = jsonschema.Draft202012Validator(SCHEMA)
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))
RECIPES = [
    path
    for path in sorted(GOLDEN.glob("*.yaml"))
    if path.stem not in {"latin", "open", "tab", "two", "hazards", "list"}
]
RIGHT = [
    path
    for path in RECIPES
    if path.with_suffix(".txt").exists() and "error[" not in path.with_suffix(".txt").read_text()
]


def tree_of(path: Path) -> Node:
    found = read_text(path.read_bytes(), path.name)
    assert found.tree is not None
    return found.tree


def flagged(data: Any) -> set[tuple[str, ...]]:
    """Returns the key paths of errors; for an unknown key, that of its mapping."""
    return {tuple(map(str, error.absolute_path)) for error in CHECKER.iter_errors(data)}


def read_of(data: Any) -> Read:
    return read_corrected(of_plain(data, Span("recipe.yaml", 1, 1)))


def read_corrected(tree: Node) -> Read:
    structure = correct(tree)
    result = read(structure.tree, "recipe", structure.wrong)
    return replace(result, found=(*structure.found, *result.found))


def test_it_is_a_schema() -> None:
    assert SCHEMA["$schema"] == CHECKER.META_SCHEMA["$id"]
    CHECKER.check_schema(SCHEMA)


def test_every_word_of_a_mode_has_a_meaning() -> None:
    assert {*fields.DISPATCH_MODES} == {*DISPATCH} and {*fields.COLLECT_MODES} == {*COLLECT}
    assert {*fields.EXECUTE_MODES} == {*EXECUTE} and {*fields.DEVICE_TYPES} == {*DEVICE_TYPES}
    assert all(means for _, means in layouts())


def test_right_recipes_are_right() -> None:
    for path in (*SHIPPED, *RIGHT, ROOT / "conf" / "base.yaml"):
        assert flagged(plain(tree_of(path))) == set(), path
    # A layout is not a recipe by itself; it is checked at `components.X.parallel`.
    for path in (ROOT / "conf" / "layout").glob("*.yaml"):
        assert flagged({"components": {"x": {"parallel": plain(tree_of(path))}}}) == set(), path


@pytest.mark.parametrize("kind", KINDS)
def test_recipes_that_init_writes_are_right(kind: str) -> None:
    text = files(Choice(kind, ranks=4), "first", "first", "first.yaml")["first.yaml"]
    found = read_text(text.encode(), "first.yaml")
    assert found.tree is not None and flagged(plain(found.tree)) == set()


NEEDS = {"MC103"}
"""Codes about missing keys, which a recipe that includes another one may leave out."""
BASES = {name: path for name, path in PATHS.items() if name != "stage"}
OUT_OF_BAND: dict[str, dict[str, Any]] = {
    "group": {"ranks": 2, "program": "train.py"},
    "component": {"_target_": "a.B", "group": "g"},
    "call": {"call": "c.m"},
    "sync": {"sync": "c", "to": "d"},
    "input": {"from": "s"},
    "block": {"repeat": {"until": "s"}, "stages": {"s": {"call": "c.m"}}},
    "inner": {"call": "c.m"},
}
"""Key -> other keys that make the rest of the recipe correct."""
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, -1, 0.5, 10**20, True, False, None, "x", "auto", "7", "a.b", "a,b", "CUDA", "gpu", "tokens"),
    *("mean", "slice", "peer", "end", [], ["x"], [1], [0, 1], [1, 1], [-1], ["x", 2], [True], [None]),
    *(["pp", "dp", "fsdp", "cp", "tp"], ["tp"], ["tp"] * 5, {}, {"x": 1}, {"x": "y"}, {"x": True}, {"x": {}}),
    *(
        {"cuda": 2},
        {"GPU": [2, 0]},
        {"cpu": 2},
        {"module": "a"},
        {"module": 3},
        {"every": 3},
        {"mode": "all"},
    ),
    *({"mode": "al"}, {"x": {"from": "y"}}, {"x": {"form": "y"}}, {"_target_": "a.b"}),
    {"x": [{"_target_": "a.B"}]},
)


def nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def pieces() -> Iterator[tuple[str, str]]:
    """Yields each key of each section, and one that does not exist."""
    for section in SECTIONS:
        if section.name in BASES:
            yield from ((section.name, key) for key in [*section.keys, "nonsense"])


def kinds_of_pieces(part: str) -> list[str]:
    """Returns the keys of a section that are the first of their type in the recipe, and the one that does not
    exist."""
    types = {(section.name, field.key): repr(field.type) for section in SECTIONS for field in section.fields}
    first: dict[str, tuple[str, str]] = {}
    for piece in pieces():
        if piece[1] != "defaults":
            first.setdefault(types.get(piece, piece[0]), piece)
    return [key for of, key in first.values() if of == part]


def recipe_with(part: str, key: str, value: Any) -> Any:
    """Returns a recipe in which only this key can be wrong."""
    path, item = BASES[part], {**OUT_OF_BAND.get(part, {}), key: value}
    if part in ("inner", "repeat"):
        block = {"repeat": {"until": "s"}, "stages": {"s": {"call": "c.m"}}}
        return nested(path[:2], {**block, **nested(path[2:], item)})
    if part in ("dispatch", "input"):
        return nested(path[:2], {"call": "c.m", **nested(path[2:], item)})
    return nested(path, item)


def is_stricter(part: str, key: str, value: Any) -> bool:
    """Whether a schema refuses an error that only rules report: missing dims in `order`, or a stage without
    `call` and `sync`."""
    return (part, key) == ("parallel", "order") or (
        key == "pipeline" and value in ({"x": {"from": "y"}}, {"x": {"form": "y"}})
    )


@pytest.mark.parametrize("part", BASES)
def test_each_key_accepts_what_the_reader_accepts(part: str) -> None:
    for key in kinds_of_pieces(part):
        for value in VALUES:
            data = recipe_with(part, key, value)
            result, seen = read_of(data), flagged(data)
            found = [one.message for one in result.found if one.code not in NEEDS and one.severity == "error"]
            found += [path[-1] for path in result.wrong if path[-1:] == ("call",)]  # a rule reports it
            is_same = bool(found) == bool(seen) or (not found and is_stricter(part, key, value))
            assert is_same, f"{part}.{key} = {value!r}: the reader says {found}, the schema {seen}"


@pytest.mark.parametrize("value", ["${vars.x}", "${oc.env:X,1}", "???"])
def test_what_is_stated_elsewhere_or_later_fits_everywhere(value: str) -> None:
    for part, key in pieces():
        if key not in ("nonsense", "defaults"):
            assert flagged(recipe_with(part, key, value)) == set(), (part, key)


LAYOUT = "layout@components.actor.parallel"
RIGHT_ENTRIES = [
    *("base", "_self_", "./grpo", "/common/cluster@_global_", "${x}", {"optional data": "small"}),
    *({LAYOUT: "hsdp"}, {f"override {LAYOUT}": "mine"}, {LAYOUT: "???"}, {"data": ["small", "large"]}),
    {"data": None},
]
WRONG_ENTRIES = [
    *(3, None, [], {}, {"a": "b", "c": "d"}, {"layout@x": {}}, {"hydra/a": "b"}, {"override hydra/a": "b"}),
]


def test_a_defaults_list_is_a_list_of_entries() -> None:
    assert not any(flagged({"defaults": [entry]}) for entry in RIGHT_ENTRIES)
    assert all(flagged({"defaults": [entry]}) for entry in WRONG_ENTRIES)
    assert flagged({"defaults": "base"}) == {("defaults",)}


@pytest.mark.parametrize("name", ["a", "résumé", "7b-grpo", "a.b@c+d", "x y", "-x", "a/b", "$"])
def test_names_of_runs(name: str) -> None:
    assert bool(flagged({"name": name})) == bool(read_of({"name": name}).found)


def test_patterns_mean_the_same_to_every_engine() -> None:
    """`\\w` and `\\d` differ between engines, and look-behinds are not everywhere."""
    patterns = re.findall(r'"pattern": "(.*?)"', str(SCHEMA).replace("'", '"'))
    assert patterns and not [
        pattern for pattern in patterns if re.search(r"\\[wWdDbB]|\(\?<|\(\?i|\\p", pattern)
    ]
