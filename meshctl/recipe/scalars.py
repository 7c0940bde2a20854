"""Reads scalars of a recipe, and describes wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from meshctl.diagnostics import Fix
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node
from meshctl.text.english import abbreviated

MAX_QUOTED = 60
"""Maximum number of characters of a wrong value that a message quotes."""

MIN_MEMORY = 1_000_000
"""Minimum number of bytes of a memory. A smaller number lacks its unit."""
BYTE_UNITS: dict[str, int] = {"b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
"""Unit in lower case -> bytes."""
BYTES_SCHEMA = r"^[0-9]{1,15}([.][0-9]{1,6})? ?([KkMmGgTt][Ii]?)?[Bb]$"
"""The pattern of a size with a unit."""
_UNITS_IN_ORDER = "".join(rf"([0-9]{{1,9}}([.][0-9]{{1,6}})? ?{unit})?" for unit in "dhms")
SECONDS_OF = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
"""Unit of time -> seconds."""
SECONDS_SCHEMA = f"^(?=[0-9]){_UNITS_IN_ORDER}$"
"""The pattern of a time with units."""


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(path: KeyPath) -> str:
    """Returns the last key of a path for messages. The index of a list item is preceded by the key of the
    list."""
    return ".".join(path[-2:]) if len(path) > 1 and path[-1].isdigit() else path[-1]


def number_of(node: Node, kind: Callable[[str], Any]) -> Any:
    """Returns a node's value. A text from the environment is converted by `kind` if possible."""
    if node.from_environment and isinstance(node.value, str):
        try:
            return kind(node.value)
        except ValueError:
            return node.value
    return node.value


def text_of(node: Node) -> str:
    """Returns the text of a scalar in the file, e.g. 010 as "010" and not as 8."""
    return node.value if isinstance(node.value, str) else node.written or str(node.value)


def is_scalar(node: Node) -> bool:
    return isinstance(node.value, (str, int, float)) and node.value != MISSING


# Help for wrong values


def found_instead(node: Node) -> str:
    """Returns a description of a wrong value. Does not quote a text from the environment, which may be
    secret."""
    if node.from_environment:
        return "but the value of the environment variable is not"
    if node.value is None or node.value == "":
        return "but it has no value"
    if node.is_mapping:
        return "not a mapping"
    if node.is_list:
        return "not a list"
    if isinstance(node.value, str):
        return f"not the text `{abbreviated(node.value, MAX_QUOTED)}`"
    return f"not {abbreviated(node.written or str(node.value), MAX_QUOTED)}"


def integers_from(least: int) -> str:
    """Returns `a positive integer`, or `an integer of at least 0`."""
    return "a positive integer" if least == 1 else f"an integer of at least {least}"


def bytes_in(text: str) -> int | None:
    """Returns the bytes of a text such as 80GB or 141 GiB; None for another text."""
    if not re.fullmatch(BYTES_SCHEMA, text, re.ASCII):
        return None
    number = text.rstrip(" BbIiKkMmGgTt")
    return round(float(number) * BYTE_UNITS[text[len(number) :].strip().lower()])


def seconds_in(text: str) -> float | None:
    """Returns the seconds of a text such as 90s, 10m, 1h30m or 2d; None for another text."""
    if not re.fullmatch(SECONDS_SCHEMA, text, re.ASCII):
        return None
    parts = re.findall(r"([0-9.]+) ?([dhms])", text)
    return sum(float(number) * SECONDS_OF[unit] for number, unit in parts)


def reference_hint(node: Node) -> str:
    """Returns help on how to write a reference, for `{{ vars.x }}`, `$(x)` and other forms of templates."""
    text = node.value
    if node.is_mapping and len(node.value) == 1:
        ((key, item),) = node.items()
        text = f"{{{key}}}" if item.value is None else text
    found = re.fullmatch(r"[$<({]+ *(\w+(\.\w+)*) *[>)}]*", text) if isinstance(text, str) else None
    return f"write ${{{found[1]}}}" if found else ""


def yaml_hint(node: Node, wanted: str) -> str:
    """Returns help for a value whose text YAML reads as another type."""
    if wanted in ("text", "text or a number") and isinstance(node.value, (bool, int, float)):
        return f'quote it: "{node.written}"'
    is_shown = isinstance(node.value, str) and not node.from_environment
    if is_shown and re.fullmatch(r"[-+]?\d+|true|false", node.value):
        return "remove the quotes"
    return reference_hint(node) or ("leave the key out for no value" if node.value in (None, "None") else "")


def quoted(node: Node, wanted: str = "text") -> tuple[Fix, ...]:
    """Returns the edit that puts quotes around a boolean or a number that is to be text."""
    is_other = isinstance(node.value, (bool, int, float)) and wanted in ("text", "text or a number")
    if not is_other or node.from_environment or not re.fullmatch(r"[\w.+-]+", node.written):
        return ()
    return (Fix(node.span, node.written, f'"{node.written}"'),)
