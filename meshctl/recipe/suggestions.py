"""Finds the key that was meant by an unknown one: first by names in other systems, then by spelling."""

from __future__ import annotations

from collections.abc import Iterable

from meshctl.recipe.fields import SECTIONS
from meshctl.text.english import nearest

_FIELDS = [field for section in SECTIONS for field in section.fields]
ALIASES: dict[str, dict[str, None]] = {}
"""Another system's name -> the keys of the same meaning, each of another section."""
RELATED: dict[str, dict[str, None]] = {}
"""Name in another system -> similar keys, in the order of preference. They are suggested, and never replaced
automatically."""
for _field in _FIELDS:
    for _word in _field.aliases.split():
        ALIASES.setdefault(_word, {})[_field.key] = None
    for _word in _field.related.split():
        RELATED.setdefault(_word, {})[_field.key] = None


def meanings(word: str, with_related: bool = True) -> tuple[str, ...]:
    """Returns the keys that may be meant by a name of another system, the best first."""
    word = word.lower().replace("-", "_")
    aliased = list(ALIASES.get(word, ()))
    related = list(RELATED.get(word, ())) if with_related else []
    return tuple(dict.fromkeys([*aliased, *related]))


def called(word: str, keys: Iterable[str]) -> str:
    """Returns the key with this name in another system; empty if there is none."""
    keys = list(keys)
    return next((meant for meant in meanings(word) if meant in keys), "")


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Returns the key that was probably meant; empty if there is none."""
    keys = list(keys)
    return called(word, keys) or nearest(word, keys)


def odd_letter(name: str) -> str:
    """Returns help for a name with a letter that looks like another one; empty for a name in ASCII."""
    odd = next((letter for letter in name if not letter.isascii()), "")
    return f"`{odd}` is not a letter of ASCII, but U+{ord(odd):04X}" if odd else ""
