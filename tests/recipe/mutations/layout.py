"""Mutations of the indentation of lines, and keys in wrong places."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.recipe.mutations.correct_recipes import Correct, Item
from tests.recipe.mutations.mutation import (
    Mutation,
    NoPlace,
    keys_of_sections,
    kind,
    moved,
    named,
    pick,
    quoted,
    replaced,
)
from tests.recipe.mutations.spelling import uses


def _block_items(recipe: Correct) -> list[Item]:
    """Returns items in block style whose key begins its line."""
    found = []
    for item in recipe.items:
        start, _ = recipe.line(item.key[0])
        if (
            not item.is_flow
            and item.key[0] != item.key[1]
            and not recipe.text[start : item.key[0]].strip(" ")
        ):
            found.append(item)
    return found


def scalar_lines(recipe: Correct) -> list[Item]:
    return [
        one
        for one in _block_items(recipe)
        if one.kind not in ("mapping", "list") or _is_one_line(recipe, one)
    ]


def _is_one_line(recipe: Correct, item: Item) -> bool:
    return recipe.text[slice(*item.value)].count("\n") == 0 and recipe.line(item.key[0]) == recipe.line(
        item.value[0]
    )


INDENT = ("indent", "column", "level", "space", "under", "belongs", "goes")


def _indented(recipe: Correct, item: Item, by: int) -> Mutation:
    """Returns the recipe with one line indented more or less."""
    start, _ = recipe.line(item.key[0])
    width = item.key[0] - start
    if width + by < 0:
        raise NoPlace
    new = " " * (width + by)
    lines = recipe.text[item.key[0] : recipe.line(item.key[0])[1]]
    place = (start, start + len(new) + len(lines))
    return replaced(recipe, (start, item.key[0]), new, *INDENT, places=(place,))


for name, by, depth in (
    ("one_less", -1, 2),
    ("one_more", 1, 1),
    ("a_level_more", 2, 1),
    ("a_level_less", -2, 3),
):

    @named(f"line_indented_by_{name}")
    def line_indented(recipe: Correct, chance: random.Random, by: int = by, depth: int = depth) -> Mutation:
        item = pick([one for one in scalar_lines(recipe) if len(one.path) >= depth], chance)
        return _indented(recipe, item, by)


def _shifted(recipe: Correct, item: Item, by: int) -> Mutation:
    """Returns the recipe with all lines of an item indented more or less."""
    start, stop = recipe.block(item)
    lines = recipe.text[start:stop].splitlines(keepends=True)
    if by < 0 and any(line.strip() and not line.startswith(" " * -by) for line in lines):
        raise NoPlace
    new = "".join((" " * by + line if by > 0 else line[-by:]) if line.strip() else line for line in lines)
    place = (start, start + len(new.splitlines()[0]))
    return replaced(recipe, (start, stop), new, *INDENT, places=(place,))


def block_mappings(recipe: Correct, *lengths: int) -> list[Item]:
    blocks = [one for one in _block_items(recipe) if one.kind == "mapping" and not _is_one_line(recipe, one)]
    return [one for one in blocks if len(one.path) in lengths]


@kind
def mapping_indented_into_one_above(recipe: Correct, chance: random.Random) -> Mutation:
    """A component that became a key of the one above it."""
    blocks = []
    for one in block_mappings(recipe, 2):
        above = [other for other in recipe.items if other.path[:-1] == one.path[:-1] and other.key < one.key]
        blocks += [one] if above and not above[-1].is_flow and above[-1].kind == "mapping" else []
    item = pick(blocks, chance)
    return _shifted(recipe, item, 2)


@kind
def mapping_indented_by_a_level_less(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(block_mappings(recipe, 2, 3, 4), chance)
    return _shifted(recipe, item, -2)


@kind
def children_not_indented(recipe: Correct, chance: random.Random) -> Mutation:
    """The keys of a mapping stand in the column of the mapping's own key."""
    item = pick(block_mappings(recipe, 1, 2, 3), chance)
    _, stop = recipe.block(item)
    start = recipe.line(item.key[0])[1] + 1
    lines = recipe.text[start:stop].splitlines(keepends=True)
    new = "".join(line[2:] if line.startswith("  ") else line for line in lines)
    place = (recipe.line(item.key[0])[0], start + len(new))
    return replaced(recipe, (start, stop), new, *INDENT, places=(place,))


@kind
def tab_in_indentation(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in _block_items(recipe) if len(one.path) > 1], chance)
    start, _ = recipe.line(item.key[0])
    return replaced(recipe, (start, item.key[0]), "\t" * ((item.key[0] - start) // 2), "tab", "spaces")


@kind
def no_break_space_in_indentation(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in _block_items(recipe) if len(one.path) > 1], chance)
    at = recipe.line(item.key[0])[0] + chance.randrange(item.key[0] - recipe.line(item.key[0])[0])
    return replaced(recipe, (at, at + 1), "\u00a0", r"U\+00A0", places=(recipe.line(item.key[0]),))


def _without(recipe: Correct, item: Item) -> tuple[tuple[int, int], str]:
    """Returns the offsets to remove so that an item is gone."""
    if not item.is_flow:
        return recipe.block(item), ""
    start, stop = item.key[0], item.value[1]
    after = re.compile(r",\s*").match(recipe.text, stop)
    before = re.compile(r",\s*$").search(recipe.text[:start])
    if after:
        return (start, after.end()), ""
    return (before.start() if before else start, stop), ""


def _move(recipe: Correct, item: Item, target: Item, remedy: str) -> Mutation:
    """Returns the recipe with an item of one line moved to the end of another mapping."""
    written = recipe.text[item.key[0] : item.value[1]]
    gone, _ = _without(recipe, item)
    if target.is_flow or _is_flow_mapping(recipe, target):
        at, new = target.value[1] - 1, f", {written}"
        start = 2
    else:
        last = [one for one in recipe.items if one.path[:-1] == target.path][-1]
        at = recipe.block(last)[1]
        indent = last.key[0] - recipe.line(last.key[0])[0]
        new = f"{' ' * indent}{written}\n"
        start = indent
    if gone[0] <= at < gone[1]:
        raise NoPlace
    text = recipe.text[:at] + new + recipe.text[at:]
    shift = len(new) if gone[0] >= at else 0
    text = text[: gone[0] + shift] + text[gone[1] + shift :]
    place = at + start - (gone[1] - gone[0] if gone[1] <= at else 0)
    return Mutation("", recipe, text, ((place, place + len(item.name)),), (remedy,))


def _is_flow_mapping(recipe: Correct, item: Item) -> bool:
    return recipe.text[item.value[0]] == "{"


def mappings(recipe: Correct) -> list[Item]:
    return [one for one in recipe.items if one.kind == "mapping" and recipe.written(one) != "{}"]


@kind
def key_moved_out_of_its_section(recipe: Correct, chance: random.Random) -> Mutation:
    """`tp_size` beside `parallel`, `every` beside `checkpoint`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) in (4, 3) and _is_one_line(recipe, one)]
    items = [one for one in items if one.path[0] in ("components", "run") and one.path[:-1] != ("run",)]
    item = pick(items, chance)
    target = pick([one for one in recipe.items if one.path == item.path[:-2]], chance)
    return _move(recipe, item, target, rf"{quoted(item.path[-2])}|under a component")


@kind
def key_moved_into_a_section(recipe: Correct, chance: random.Random) -> Mutation:
    """A key of a component in its `args` or `parallel`, one of `run` in `checkpoint`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) in (2, 3) and _is_one_line(recipe, one)]
    items = [one for one in items if one.path[0] in ("components", "run")]
    item = pick(items, chance)
    targets = [
        one
        for one in mappings(recipe)
        if one.path[:-1] == item.path[:-1]
        and one.path != item.path
        and one.name != "model"
        and not recipe.items_at(*one.path, item.name)  # which would be given twice
    ]
    target = pick(targets, chance)
    return _move(recipe, item, target, rf"{quoted(item.path[-2])}|beside")


@kind
def key_moved_between_sections(recipe: Correct, chance: random.Random) -> Mutation:
    """`device_type` in a component, `group` in a stage, `steps` in `cluster`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) > 1 and _is_one_line(recipe, one)]
    item = pick([one for one in items if one.path[0] not in ("vars", "defaults")], chance)
    tops = [top for top in ("groups", "components", "pipeline") if top != item.path[0]]
    targets = [one for one in mappings(recipe) if len(one.path) == 2 and one.path[0] in tops]
    targets += [one for one in recipe.items_at("run") if item.path[0] != "run"]
    target = pick(targets, chance)
    remedies = rf"{quoted(item.path[-2])}|a key of|{quoted(item.path[0])}|called|to a component"
    return _move(recipe, item, target, remedies)


@kind
def definition_moved_to_another_section(recipe: Correct, chance: random.Random) -> Mutation:
    """A component under `groups`, a stage under `components`."""
    items = [
        one
        for one in recipe.items
        if len(one.path) == 2 and one.kind == "mapping" and _is_one_line(recipe, one)
    ]
    item = pick([one for one in items if one.path[0] in ("groups", "components", "pipeline")], chance)
    targets = [
        one
        for one in recipe.items
        if one.path in (("groups",), ("components",), ("pipeline",)) and one.path[0] != item.path[0]
    ]
    target = pick(targets, chance)
    return _move(recipe, item, target, quoted(item.path[0]))


@kind
def required_key_missing(recipe: Correct, chance: random.Random) -> Mutation:
    required = {"ranks", "_target_", "group", "call", "sync", "to"}
    items = [
        one
        for one in recipe.items
        if len(one.path) == 3 and one.name in required and _is_one_line(recipe, one)
    ]
    items += [one for one in recipe.items_at("pipeline", "*", "samples") if not _has(recipe, one, "in")]
    item = pick(items, chance)
    gone, new = _without(recipe, item)
    parent = next(one for one in recipe.items if one.path == item.path[:-1])
    made = replaced(recipe, gone, new, quoted(item.name))
    return replace(made, places=((parent.key[0], parent.value[1]),))


def _has(recipe: Correct, item: Item, key: str) -> bool:
    return any(one.path == (*item.path[:-1], key) for one in recipe.items)


@kind
def definition_missing(recipe: Correct, chance: random.Random) -> Mutation:
    """A group, a component or a stage that others name is gone."""
    items = [one for top in ("groups", "components", "pipeline") for one in recipe.items_at(top, "*")]
    item = pick([one for one in items if len(uses(recipe, one)) == 1], chance)
    gone, new = _without(recipe, item) if item.is_flow else (recipe.block(item), "")
    places = [(moved(a, gone, new), moved(b, gone, new)) for a, b in uses(recipe, item)]
    top = recipe.items_at(item.path[0])[0]
    return replaced(recipe, gone, new, quoted(item.name), places=[*places, top.key])
