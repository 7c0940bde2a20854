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
