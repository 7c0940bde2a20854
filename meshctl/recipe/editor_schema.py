"""Building blocks from which each type of values creates its JSON Schema.

A schema of recipes differs from others in three ways: `${...}` and `???` are allowed for any value; no key is
required, because an included file may contain it; and the keys that the reader refuses are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Schema = dict[str, Any]
MAX_COUNT = 10_000_000
AUTO = "the number of ranks that the other sizes leave"

OPEN = r"^\?\?\?$|\$\{"
"""A text that is allowed for any value: `???`, or one with an interpolation."""
WORD, REST = r"[^\x00-@\[-^`{-\x7f]", r"[^\x00-/:-@\[-^`{-\x7f]"
"""The first and the further characters of an identifier in any alphabet. `\\w` matches only ASCII in some
regex engines."""


def mapping(**more: object) -> Schema:
    return {"type": ["object", "string"], "pattern": OPEN, **more}


def ref(name: str) -> Schema:
    """Returns a reference to the schema of a section."""
    return {"$ref": f"#/$defs/{name}"}


def whole(min: int = 0, max: int = MAX_COUNT) -> Schema:
    return {"type": ["integer", "string"], "minimum": min, "maximum": max, "pattern": OPEN}


def text(pattern: str = "") -> Schema:
    return {"type": "string", **({"pattern": f"{pattern}|{OPEN}"} if pattern else {})}


def texts() -> Schema:
    """A list of texts, or one."""
    return {"type": ["string", "array"], "items": {"type": "string"}}


def list_of(item: Schema, **more: object) -> Schema:
    return {"type": ["array", "string"], "pattern": OPEN, "items": item, **more}


def words(words: Mapping[str, str], pattern: str = "") -> Schema:
    """One of a few words, each with its meaning; or a text that matches a pattern."""
    known = [{"const": word, "description": meaning} for word, meaning in words.items()]
    return {"anyOf": [*known, {"type": "string", "pattern": f"{pattern}|{OPEN}" if pattern else OPEN}]}


def any_case(words: Iterable[str]) -> str:
    """Returns a pattern for words in any case: a schema has no flag for that."""
    return f"^({'|'.join(''.join(f'[{letter}{letter.upper()}]' for letter in word) for word in words)})$"


def count_or_list(**more: object) -> Schema:
    return {**whole(1), "type": ["integer", "array", "string"], "items": whole(), **more}


def plain_data() -> Schema:
    """The schema of plain data of any depth, such as the values in `args`."""
    inner = {"$ref": "#/$defs/data"}
    return {"properties": {"_target_": False}, "additionalProperties": inner, "items": inner}
