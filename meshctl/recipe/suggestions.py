"""Which key was meant by an unknown one: other systems' names first, then the nearest spelling."""

from __future__ import annotations

from collections.abc import Iterable

from meshctl.recipe.fields import SECTIONS
from meshctl.text.english import nearest

_FIELDS = [field for section in SECTIONS for field in section.fields]
ALIASES = {word: field.key for field in _FIELDS for word in field.aliases.split()}
"""Another system's name -> the key of the same meaning."""
RELATED: dict[str, dict[str, None]] = {}
"""Another name -> the keys, in order, that may be meant by it: they are proposed and never put in its
place."""
for _field in _FIELDS:
    for _word in _field.related.split():
        RELATED.setdefault(_word, {})[_field.key] = None


def meanings(word: str, with_related: bool = True) -> tuple[str, ...]:
    """Returns the keys that another system's name stands for, the best first."""
    word = word.lower().replace("-", "_")
    aliased = [ALIASES[word]] if word in ALIASES else []
    related = list(RELATED.get(word, ())) if with_related else []
    return tuple(dict.fromkeys([*aliased, *related]))


def called(word: str, keys: Iterable[str]) -> str:
    """Returns the key that another system calls so; empty if none."""
    keys = list(keys)
    return next((meant for meant in meanings(word) if meant in keys), "")


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Returns the key that was probably meant; empty if none."""
    keys = list(keys)
    return called(word, keys) or nearest(word, keys)
