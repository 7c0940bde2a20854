"""One mistake in a correct recipe, and the helpers by which the kinds of mutations create it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.recipe.mutations.correct_recipes import Correct, Item


@dataclass(frozen=True)
class Mutation:
    kind: str
    recipe: Correct
    text: str
    places: tuple[tuple[int, int], ...]
    """Offsets in the text; one of them must be reported."""
    remedies: tuple[str, ...]
    """Patterns; one of them must be found in message or help, unless the fixes restore the recipe."""
    override: str = ""


class NoPlace(Exception):
    """The recipe has no place for a mutation of this kind."""


Kind = Callable[[Correct, random.Random], Mutation]
KINDS: dict[str, Kind] = {}
Place = TypeVar("Place")


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def named(name: str) -> Callable[[Any], Any]:
    """Returns a decorator that registers a kind of mutation under a name."""

    def register(function: Any) -> Any:
        KINDS[name] = function
        return function

    return register


def replaced(
    recipe: Correct, span: tuple[int, int], new: str, *remedies: str, places: Sequence[tuple[int, int]] = ()
) -> Mutation:
    """Returns the recipe with one piece of its text replaced; the new piece is the place."""
    start, stop = span
    text = recipe.text[:start] + new + recipe.text[stop:]
    return Mutation("", recipe, text, tuple(places) or ((start, start + len(new)),), remedies)


def moved(offset: int, edit: tuple[int, int], new: str) -> int:
    """Returns where an offset is after an edit."""
    return offset if offset < edit[1] else offset + len(new) - (edit[1] - edit[0])


def quoted(word: str) -> str:
    """Returns the pattern of a word that a help proposes."""
    return rf"(?<![\w-]){re.escape(word)}(?![\w-])"


def pick(places: Sequence[Place], chance: random.Random) -> Place:
    """Returns one of several places. Raises `NoPlace` if there is none."""
    if not places:
        raise NoPlace
    return chance.choice(places)


def keys_of_sections(recipe: Correct) -> list[Item]:
    """Returns the items whose keys are the product's, and not the user's."""
    return [item for item in recipe.items if is_own_key(item.path) and item.key[0] != item.key[1]]


def is_own_key(path: tuple[str, ...]) -> bool:
    top = path[0]
    if top == "pipeline" and path[2:3] == ("stages",) and len(path) > 3:
        path = (top, *path[3:])  # a stage of a block
    if top in ("vars", "defaults"):
        return len(path) == 1
    if top in ("groups", "components", "pipeline"):
        free = any(name in ("args", "env") for name in path[2:-1])
        in_parameters = len(path) == 4 and path[2] == "in"
        return len(path) != 2 and not free and not in_parameters
    return True


MISSPELLINGS: dict[str, Callable[[str, int, random.Random], str]] = {
    "dropped": lambda word, at, chance: word[:at] + word[at + 1 :],
    "doubled": lambda word, at, chance: word[:at] + word[at] + word[at:],
    "swapped": lambda word, at, chance: word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    "changed": lambda word, at, chance: word[:at] + chance.choice("aeioulnrst") + word[at + 1 :],
}


def misspelt(word: str, how: str, chance: random.Random) -> str:
    """Returns a word with one mistake behind its first letter; the same word if it is too short."""
    letters = [at for at in range(1, len(word)) if word[at].isalpha()]
    if len(word) < 3 or not letters:
        return word
    return MISSPELLINGS[how](word, chance.choice(letters), chance)


def misspelt_anyhow(word: str, chance: random.Random) -> str:
    return misspelt(word, chance.choice(list(MISSPELLINGS)), chance)


def misspell(recipe: Correct, span: tuple[int, int], chance: random.Random, how: str = "") -> Mutation:
    word = recipe.text[slice(*span)]
    new = misspelt(word, how, chance) if how else misspelt_anyhow(word, chance)
    if new == word:
        raise NoPlace
    return replaced(recipe, span, new, quoted(word))
