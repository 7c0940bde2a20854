"""Mutations of the types of values, and of numbers that must fit together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.recipe.mutations.correct_recipes import Correct, Item
from tests.recipe.mutations.layout import mappings
from tests.recipe.mutations.mutation import Mutation, NoPlace, is_own_key, kind, moved, named, pick, replaced
from tests.recipe.mutations.spelling import pick_text


def _numbers(recipe: Correct) -> list[Item]:
    """Returns the numbers whose keys are the product's own."""
    return [one for one in recipe.items if one.kind == "number" and is_own_key(one.path)]


def retyped(recipe: Correct, item: Item, new: str, *remedies: str) -> Mutation:
    return replaced(recipe, item.value, new, *remedies)


NUMBERS: dict[str, tuple[tuple[str, ...], str, Callable[[Item], bool]]] = {
    "in_quotes": (('"{}"',), "quotes", lambda item: True),
    "in_words": (
        ("two", "many", "all", "1k", "4x"),
        "integer|number",
        lambda item: not item.path[-1].isdigit(),
    ),
    "with_unit": (("{}s", "{}GB", "{} gpus", "{}k"), "integer|number", lambda item: True),
    "with_fraction": (("{}.0", "{}.5", "{}e1"), r"integer|write \d+", lambda item: item.name != "grace"),
    "negative": (("-{}",), "positive|0 or more|0 or greater|integer|negative|number", lambda item: True),
    "zero": (("0",), "positive|from 1", lambda item: item.name in POSITIVE),
    "as_boolean": (("true", "yes", "off"), "integer|number", lambda item: True),
}
"""Kind of wrong number -> (its forms, pattern of the remedy, whether the kind applies to an item)."""
POSITIVE = (
    *("ranks", "samples", "nodes", "devices_per_node", "keep"),
    *("dp_size", "tp_size", "fsdp_size", "pp_size"),
)

for name, (forms, remedy, applies) in NUMBERS.items():

    @named(f"number_{name}")
    def number_wrong(
        recipe: Correct,
        chance: random.Random,
        forms: Sequence[str] = forms,
        remedy: str = remedy,
        applies: Callable[[Item], bool] = applies,
    ) -> Mutation:
        item = pick([one for one in _numbers(recipe) if applies(one)], chance)
        return retyped(recipe, item, chance.choice(forms).format(recipe.written(item)), remedy)


@kind
def boolean_in_words(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items if one.kind == "bool" and is_own_key(one.path)], chance)
    return retyped(
        recipe, item, chance.choice(('"true"', "1", "maybe", "enabled", "True!")), "true or false|true"
    )


@kind
def text_as_boolean(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "name", "components.*.group", "pipeline.*.call", "run.dir")
    return retyped(
        recipe, item, chance.choice(("on", "no", "true", "12", "3.5")), "quote|text|component|group"
    )


@kind
def value_as_list(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.kind in ("number", "text") and is_own_key(one.path)]
    items = [
        one
        for one in items
        if one.name not in ("in", "after", "record", "show", "ranks", "devices_per_node", "visible_devices")
    ]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    return retyped(recipe, item, f"[{recipe.written(item)}]", "list|bracket|integer|number|text|write")


@kind
def value_as_mapping(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.kind in ("number", "text") and is_own_key(one.path)]
    items = [
        one
        for one in items
        if one.name not in ("in", "devices_per_node", "dispatch", "model", "parallel", "program")
    ]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    written = recipe.written(item)
    quoted = f'"{written}"' if written.startswith("${") else written
    return retyped(recipe, item, f"{{value: {quoted}}}", "mapping")


@kind
def value_left_out(recipe: Correct, chance: random.Random) -> Mutation:
    """A key without its value."""
    items = [one for one in recipe.items if one.kind in ("number", "text", "bool") and is_own_key(one.path)]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    made = retyped(recipe, item, "", "integer|number|text|value|true or false|list|must")
    return replace(made, places=((item.key[0], item.value[0] + 1),))


@kind
def text_emptied(recipe: Correct, chance: random.Random) -> Mutation:
    """A key with an empty text."""
    items = [one for one in recipe.items if one.kind == "text" and is_own_key(one.path)]
    return retyped(recipe, pick(items, chance), '""', "value|text|list|empty|does not exist|must")


@kind
def mapping_as_text(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in mappings(recipe) if is_own_key(one.path) or len(one.path) == 2], chance)
    if item.path[0] == "vars" or item.key[0] == item.key[1] or item.path[0] == "defaults":
        raise NoPlace
    if item.name in ("in", "dispatch", "devices_per_node", "program", "parallel", "model"):
        raise NoPlace
    new = chance.choice(("default", "7", "none"))
    gap = "" if recipe.text[item.value[0]] == "{" else " "
    start = item.value[0] if not gap else item.key[1] + 1
    made = replaced(
        recipe,
        (start, item.value[1]),
        gap + new,
        "mapping|keys|write",
        places=((item.key[0], item.value[0] + 9),),
    )
    return made


@kind
def size_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items_at("components", "*", "parallel", "*") if one.kind == "number"]
    item = pick([one for one in items if one.name not in ("ep_size",)], chance)
    new = chance.choice([n for n in ("3", "5", "7", "64") if n != recipe.written(item)])
    layout = next(one for one in recipe.items if one.path == item.path[:-1])
    edit = item.value
    place = (layout.key[0], moved(layout.value[1], edit, new))
    return replaced(
        recipe, edit, new, r"\b(dp|fsdp|tp|pp|cp)\b \d|`\w+: \d+`|these do|choose", places=(place,)
    )


@kind
def ranks_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items_at("groups", "*", "ranks") if one.kind == "number"], chance)
    new = chance.choice(("3", "5", "7", "31"))
    edit = item.value
    places = [(edit[0], edit[0] + len(new))]
    places += [
        (moved(one.key[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("components", "*", "parallel")
    ]
    places += [
        (moved(one.value[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("groups", "*", "visible_devices")
    ]
    return replaced(recipe, edit, new, r"\d", places=places)


@kind
def cluster_too_small(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items_at("cluster", "*") if one.kind == "number"], chance)
    new = "1" if item.name == "nodes" else chance.choice(("2", "3", "4"))
    if new == recipe.written(item):
        raise NoPlace
    edit = item.value
    places = [(edit[0], edit[0] + len(new))]
    places += [
        (moved(one.value[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("groups", "*", "ranks")
    ]
    return replaced(recipe, edit, new, r"\d", places=places)


@kind
def device_beyond_cluster(recipe: Correct, chance: random.Random) -> Mutation:
    """A device that does not exist, or that the group has twice."""
    item = pick(recipe.items_at("groups", "*", "ranks", "*"), chance)
    made = retyped(recipe, item, chance.choice(("16", "99", "1")), r"\d")
    [ranks] = recipe.items_at(*item.path[:-1])
    return replace(made, places=((ranks.value[0], ranks.value[1] + 1),))


@kind
def samples_too_few(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items_at("pipeline", "*", "samples") if one.kind == "number"], chance)
    return retyped(recipe, item, "1", r"at least \d|not the same|\d")
