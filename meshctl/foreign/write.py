"""The text of a converted recipe, as a person writes it: short mappings in one line, and comments behind the
lines that need a word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshctl.recipe.templates import quoted

WIDTH = 96
"""The longest mapping in one line, its comment not counted."""
COLUMN = 44
"""The column at which comments begin, if the line ends before."""


def text_of(recipe: Mapping[str, Any], comments: Mapping[tuple[str, ...], str]) -> str:
    return "\n".join(_lines(recipe, comments, ())) + "\n"


def _lines(
    value: Mapping[str, Any], comments: Mapping[tuple[str, ...], str], path: tuple[str, ...]
) -> Iterator[str]:
    indent = "  " * len(path)
    for key, item in value.items():
        here = (*path, key)
        if not path and (isinstance(item, Mapping) or key == "name") and key != next(iter(value)):
            yield ""
        own = comments.get(here, "")
        below = [one for one in comments if one[: len(here)] == here and one != here]
        line = f"{indent}{_key(key)}: {flow(item)}"
        if len(below) == 1 and not own and path and len(line) <= COLUMN + 20:
            is_usual = comments[below[0]].startswith("the default")
            own = f"{below[0][-1]}: " * (is_usual and len(item) > 1) + comments[below[0]]
            below = []
        is_block = isinstance(item, Mapping) and item and (len(line) > WIDTH or below or not path)
        if isinstance(item, Mapping) and is_block:
            yield _commented(f"{indent}{_key(key)}:", own)
            yield from _lines(item, comments, here)
        elif isinstance(item, (list, tuple)) and (len(line) > WIDTH or key == "defaults"):
            yield _commented(f"{indent}{_key(key)}:", own)
            yield from (f"{indent}  - {_bare(one)}" for one in item)
        else:
            yield _commented(line, own)


def _commented(line: str, comment: str) -> str:
    return f"{line.ljust(COLUMN - 2)}  # {comment}" if comment else line


def _bare(value: Any) -> str:
    """Returns an item of a list, a mapping of one key without braces."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(key, item)] = value.items()
        return f"{_key(key)}: {flow(item)}"
    return flow(value)


def flow(value: Any) -> str:
    """Returns a value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        return quoted(value) if value.isprintable() else json.dumps(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _number(value: float) -> str:
    """Returns a number as people write learning rates: 1e-6, and not 1e-06."""
    text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def _key(key: str) -> str:
    """Returns a key without quotes if it may stand so, as an entry of a defaults list such as `model@actor`
    may."""
    return key if re.fullmatch(r"[A-Za-z_][\w./@-]*", key) and "@" in key else quoted(str(key))
