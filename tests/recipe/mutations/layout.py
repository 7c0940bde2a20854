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


@kind
def tab_in_indentation(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in _block_items(recipe) if len(one.path) > 1], chance)
    start, _ = recipe.line(item.key[0])
    return replaced(recipe, (start, item.key[0]), "\t" * ((item.key[0] - start) // 2), "tab", "spaces")


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
