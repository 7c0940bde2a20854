"""Mutations that break the syntax of YAML."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.recipe.mutations.correct_recipes import Correct
from tests.recipe.mutations.layout import scalar_lines
from tests.recipe.mutations.mutation import Mutation, NoPlace, kind, pick, replaced
from tests.recipe.mutations.spelling import pick_text
from tests.recipe.mutations.values import retyped


@kind
def colon_missing(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.key[0] != one.key[1] and recipe.text[one.key[1]] == ":"]
    item = pick(items, chance)
    place = (item.key[0], recipe.line(item.key[0])[1])
    return replaced(recipe, (item.key[1], item.key[1] + 1), "", "`:`|colon", places=(place,))


@kind
def space_missing_after_colon(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.key[0] != one.key[1] and one.value[0] == one.key[1] + 2]
    item = pick(items, chance)
    place = (item.key[0], item.value[1] - 1)
    return replaced(recipe, (item.key[1] + 1, item.key[1] + 2), "", "space", "`: `", places=(place,))


@kind
def equals_sign_for_colon(recipe: Correct, chance: random.Random) -> Mutation:
    items = [
        one
        for one in recipe.items
        if one.key[0] != one.key[1]
        and one.kind in ("number", "text", "bool")
        and one.value[0] == one.key[1] + 2
    ]
    item = pick(items, chance)
    new = chance.choice(("=", " = "))
    return replaced(
        recipe, (item.key[1], item.key[1] + 2), new, "`:`|`: `|colon", places=((item.key[0], item.value[1]),)
    )


@kind
def quote_not_closed(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if recipe.written(one)[:1] in ("'", '"')]
    items += [one for one in recipe.items if one.kind == "text" and recipe.written(one).isalpha()]
    item = pick(items, chance)
    start, stop = item.value
    if recipe.text[start] in "'\"":
        return replaced(recipe, (stop - 1, stop), "", "quote|clos", places=((start, stop),))
    return replaced(recipe, (start, start), '"', "quote|clos", places=((start, stop + 1),))


@kind
def bracket_not_closed(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(list(re.finditer(r"(?<!\$)(?<!\$\{)[\]}](?=[\s,\]}])", recipe.text)), chance)
    # Without one of several brackets in a row, the text is the same.
    row = re.compile(r"[\]}]+").match(recipe.text, found.start())
    ends = range(found.end(), (row.end() if row else found.end()) + 1)
    opening = [one for one in recipe.items if one.value[1] in ends]
    if not opening:
        raise NoPlace
    places = [(one.key[0], found.end()) for one in opening]
    return replaced(recipe, found.span(), "", "clos|bracket|brace|`[\\]}]`", places=places)


@kind
def bracket_not_opened(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if recipe.text[one.value[0]] in "{[" and one.key[0] != one.key[1]]
    item = pick(items, chance)
    return replaced(
        recipe,
        (item.value[0], item.value[0] + 1),
        "",
        r"open|bracket|brace|clos|write (it as )?\[",
        places=((item.key[0], item.value[1]),),
    )


@kind
def comma_missing(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(list(re.finditer(r",(?= \w+)", recipe.text)), chance)
    inside = [
        one
        for one in recipe.items
        if recipe.text[one.value[0]] in "{[" and one.value[0] < found.start() < one.value[1]
    ]
    if not inside:
        raise NoPlace
    inner = inside[-1]
    return replaced(recipe, found.span(), "", "`,`|comma", places=((inner.key[0], inner.value[1]),))


@kind
def colon_in_plain_text(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "name", "components.*.args.path", "run.dir", "vars.prompts")
    if recipe.text[item.value[0]] in "'\"":
        raise NoPlace
    made = retyped(recipe, item, "run: two", "quote")
    return replace(made, places=((item.key[0], item.value[0] + 9),))


@kind
def curly_quotes(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items if recipe.written(one)[:1] == '"'], chance)
    return retyped(recipe, item, f"\u201c{recipe.written(item)[1:-1]}\u201d", "straight", "quote")


@kind
def key_given_twice(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(scalar_lines(recipe), chance)
    start, stop = recipe.block(item)
    line = recipe.text[start:stop]
    return replaced(recipe, (stop, stop), line, "twice", places=((start, stop + len(line)),))


@kind
def alias_unknown(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(
        [one for one in recipe.items if one.kind in ("number", "text") and one.key[0] != one.key[1]], chance
    )
    return retyped(recipe, item, "*shared ", "anchor")


@kind
def second_document(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick([one for one in recipe.items[1:] if len(one.path) == 1], chance)
    return replaced(recipe, (item.key[0], item.key[0]), "---\n", "---")


@kind
def merge_conflict(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick(scalar_lines(recipe), chance)
    start, stop = recipe.block(item)
    line = recipe.text[start:stop]
    new = f"<<<<<<< HEAD\n{line}=======\n{line}>>>>>>> other\n"
    return replaced(recipe, (start, stop), new, "merge|conflict")


@kind
def no_break_space_after_colon(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.key[0] != one.key[1] and one.value[0] == one.key[1] + 2]
    item = pick(items, chance)
    place = (item.key[0], item.value[1])
    return replaced(recipe, (item.key[1] + 1, item.key[1] + 2), "\u00a0", r"U\+00A0", places=(place,))


@kind
def list_item_without_space(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(list(re.finditer(r"^ +- ", recipe.text, re.MULTILINE)), chance)
    places = (recipe.line(found.start()),)
    return replaced(recipe, (found.end() - 1, found.end()), "", "space|list|`-`", places=places)
