"""Mutations of the spelling of keys, names, words and interpolations."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from meshctl.recipe.fields import COLLECT_MODES, DEVICE_TYPES, DISPATCH_MODES, EXECUTE_MODES
from meshctl.recipe.mistakes import ALIASES
from tests.recipe.mutations.correct_recipes import Correct, Item
from tests.recipe.mutations.mutation import (
    MISSPELLINGS,
    Mutation,
    NoPlace,
    keys_of_sections,
    kind,
    misspell,
    misspelt_anyhow,
    moved,
    named,
    pick,
    quoted,
    replaced,
)

for how in MISSPELLINGS:

    @named(f"key_with_letter_{how}")
    def key_misspelt(recipe: Correct, chance: random.Random, how: str = how) -> Mutation:
        item = pick([one for one in keys_of_sections(recipe) if len(one.path) > 1], chance)
        return misspell(recipe, item.key, chance, how)


for name, pattern in {
    "top_key": ("*",),
    "argument": ("components", "*", "args", "*"),
    "parameter": ("pipeline", "*", "in", "*"),
}.items():

    @named(f"{name}_misspelt")
    def key_at_misspelt(
        recipe: Correct, chance: random.Random, pattern: tuple[str, ...] = pattern
    ) -> Mutation:
        item = pick([one for one in recipe.items_at(*pattern) if one.key[0] != one.key[1]], chance)
        return misspell(recipe, item.key, chance)


@kind
def key_in_capitals(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(keys_of_sections(recipe), chance)
    new = chance.choice((item.name.upper(), item.name.capitalize()))
    if new == item.name:
        raise NoPlace
    return replaced(recipe, item.key, new, quoted(item.name))


@kind
def key_with_hyphens(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in keys_of_sections(recipe) if "_" in one.name.strip("_")], chance)
    return replaced(recipe, item.key, item.name.replace("_", "-"), quoted(item.name))


@kind
def key_in_camel_case(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in keys_of_sections(recipe) if "_" in one.name.strip("_")], chance)
    first, *rest = item.name.split("_")
    return replaced(recipe, item.key, first + "".join(map(str.capitalize, rest)), quoted(item.name))


@kind
def key_in_plural(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(keys_of_sections(recipe), chance)
    new = item.name[:-1] if item.name.endswith("s") else f"{item.name}s"
    return replaced(recipe, item.key, new, quoted(item.name))


@kind
def key_of_another_system(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(
        [one for one in keys_of_sections(recipe) if any(one.name in keys for keys in ALIASES.values())],
        chance,
    )
    aliases = [alias for alias, keys in ALIASES.items() if [*keys] == [item.name]]
    return replaced(recipe, item.key, chance.choice(aliases), quoted(item.name))


def pick_text(recipe: Correct, chance: random.Random, *paths: str) -> Item:
    """Returns a text at one of the key paths, in which `*` stands for any key."""
    found = [one for path in paths for one in recipe.items_at(*path.split(".")) if one.kind == "text"]
    return pick(found, chance)


NAMES: dict[str, tuple[str, ...]] = {
    "group": ("components.*.group", "groups.*.colocate"),
    "stage": (
        *("pipeline.*.in", "pipeline.*.in.*", "pipeline.*.in.*.from"),
        *("pipeline.*.after", "pipeline.*.dispatch.home", "run.record"),
    ),
    "synced_component": ("pipeline.*.sync", "pipeline.*.to", "components.*.parallel"),
    "metric": ("run.show.*",),
}
"""Name in a value -> the key paths of such values."""
PARTS = {
    "called_component": ("pipeline.*.call", r"^\w+"),
    "method": ("pipeline.*.call", r"\w+$"),
    "class": ("components.*._target_", r"\w+$"),
    "module": ("components.*._target_", r"^.+(?=\.)"),
}
"""Name in a part of a value -> (key path, pattern of the part)."""

for name, paths in NAMES.items():

    @named(f"{name}_misspelt")
    def name_misspelt(recipe: Correct, chance: random.Random, paths: tuple[str, ...] = paths) -> Mutation:
        return misspell(recipe, pick_text(recipe, chance, *paths).value, chance)


for name, (path, part) in PARTS.items():

    @named(f"{name}_misspelt")
    def part_misspelt(recipe: Correct, chance: random.Random, path: str = path, part: str = part) -> Mutation:
        item = pick_text(recipe, chance, path)
        found = next(re.finditer(part, recipe.written(item)))
        return misspell(recipe, (item.value[0] + found.start(), item.value[0] + found.end()), chance)


@kind
def word_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """A mode, a device type, or another word of a few."""
    keys = ("dispatch", "execute", "collect", "balance", "mode", "device_type")
    words = {*DISPATCH_MODES, *EXECUTE_MODES, *COLLECT_MODES, *DEVICE_TYPES, "tokens"}
    item = pick([one for one in recipe.items if one.name in keys and recipe.written(one) in words], chance)
    return misspell(recipe, item.value, chance)


@kind
def definition_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """The name of a group, a component or a stage, where it is defined and used elsewhere."""
    tops = ("groups", "components", "pipeline")
    items = [one for top in tops for one in recipe.items_at(top, "*")]
    items = [one for one in items if uses(recipe, one)]
    item = pick(items, chance)
    new = misspelt_anyhow(item.name, chance)
    edit = item.key
    moved_uses = [(moved(a, edit, new), moved(b, edit, new)) for a, b in uses(recipe, item)]
    if new == item.name:
        raise NoPlace
    places = [(edit[0], edit[0] + len(new)), *moved_uses]
    return replaced(recipe, edit, new, quoted(item.name), places=places)


def uses(recipe: Correct, item: Item) -> list[tuple[int, int]]:
    top, name = item.path
    keys = {
        "groups": ("group", "colocate"),
        "components": ("call", "sync", "to", "parallel"),
        "pipeline": ("in", "from", "after", "home", "record"),
    }[top]
    found = []
    for one in recipe.items:
        written = recipe.written(one).strip("\"'")
        is_use = (one.name in keys and written.partition(".")[0] == name) or (
            top == "pipeline" and one.path[:2] == ("run", "show") and written.partition(".")[0] == name
        )
        in_parameter = top == "pipeline" and len(one.path) == 4 and one.path[2] == "in" and written == name
        if (is_use or in_parameter) and one.kind == "text" and one.path[0] != "vars":
            found.append(one.value)
    return found


@kind
def default_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """A config, a config group, its package or its option in the defaults list."""
    items = [one for one in recipe.items if one.path[0] == "defaults" and one.kind == "text"]
    spans = [one.value for one in items if recipe.written(one) != "_self_"]
    for one in items:
        for word in re.finditer(r"[\w]+", recipe.text[slice(*one.key)]):
            spans.append((one.key[0] + word.start(), one.key[0] + word.end()))
    return misspell(recipe, pick(spans, chance), chance)


def _interpolations(recipe: Correct) -> list[re.Match[str]]:
    return list(re.finditer(r"\$\{([\w.]+)\}", recipe.text))


@kind
def interpolation_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(_interpolations(recipe), chance)
    word = chance.choice([*re.finditer(r"\w+", found[1])])
    start = found.start(1)
    made = misspell(recipe, (start + word.start(), start + word.end()), chance)
    return replace(made, places=((found.start(), found.end() + 1),))


@kind
def interpolation_of_another_template(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(_interpolations(recipe), chance)
    forms = ("{{{{ {} }}}}", "${}", "$({})", "{{{}}}", "{{{{{}}}}}", "<{}>")
    new = chance.choice(forms).format(found[1])
    return replaced(recipe, found.span(), new, re.escape(found[0]))


@kind
def interpolation_not_closed(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(_interpolations(recipe), chance)
    return replaced(recipe, (found.start(), found.end()), found[0][:-1], "clos", r"`?\}")


@kind
def environment_without_colon(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(list(re.finditer(r"\$\{oc\.env:DATA,train\.jsonl\}", recipe.text)), chance)
    new = chance.choice(("${oc.env.DATA}", "${env:DATA}", "${DATA}", "$DATA", "${oc.env:DATA"))
    return replaced(recipe, found.span(), new, r"\$\{oc\.env:DATA", "clos")
