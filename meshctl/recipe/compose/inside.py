"""Where the parts of an override's value stand: `groups.train={ranks: [0, 1]}` is one text and four values.

Hydra's grammar says what the value is; here its brackets, commas and quotes are followed beside it. Where the
two do not go together (a function such as `sort([3, 1])` gives what is not written), there is no answer, and
all parts stand at the whole value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshctl.diagnostics import Span
from meshctl.recipe.compose.yaml_tree import Node

CLOSING = {"{": "}", "[": "]", "(": ")"}


class _Lost(Exception):
    """The text is not written as the value is."""


def placed(value: Any, text: str, start: int, file: str) -> Node | None:
    """The value as a tree whose nodes stand where they are written; none where that cannot be told."""
    try:
        node, _ = _value(value, text, start, file)
    except _Lost:
        return None
    return node


def _value(value: Any, text: str, start: int, file: str) -> tuple[Node, int]:
    start = _past_space(text, start)
    if isinstance(value, dict):
        return _mapping(value, text, start, file)
    if isinstance(value, list):
        return _list(value, text, start, file)
    stop = _end(text, start)
    span = _span(file, start, stop)
    return Node(value, span, written=text[start:stop].strip()), stop


def _mapping(value: dict[Any, Any], text: str, start: int, file: str) -> tuple[Node, int]:
    items: dict[str, Node] = {}
    position = _past(text, start, "{")
    for key, item in value.items():
        position = _past_space(text, position)
        stop = _end(text, position, ":")
        if text[position:stop].strip().strip("'\"") != str(key):
            raise _Lost
        where = _span(file, position, position + len(text[position:stop].rstrip()))
        node, position = _value(item, text, _past(text, stop, ":"), file)
        items[str(key)] = Node(node.value, node.span, where, node.written)
        position = _past_comma(text, position)
    stop = _past(text, position, "}")
    return Node(items, _span(file, start, stop)), stop


def _list(value: list[Any], text: str, start: int, file: str) -> tuple[Node, int]:
    items = []
    position = _past(text, start, "[")
    for item in value:
        node, position = _value(item, text, position, file)
        items.append(node)
        position = _past_comma(text, position)
    stop = _past(text, position, "]")
    return Node(items, _span(file, start, stop)), stop


def _span(file: str, start: int, stop: int) -> Span:
    return Span(file, 1, start + 1, max(1, stop - start))


def _past_space(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position


def _past(text: str, position: int, sign: str) -> int:
    position = _past_space(text, position)
    if not text.startswith(sign, position):
        raise _Lost
    return position + 1


def _past_comma(text: str, position: int) -> int:
    position = _past_space(text, position)
    return position + 1 if text.startswith(",", position) else position


def _end(text: str, start: int, sign: str = "") -> int:
    """Where a scalar ends, without the space behind it."""
    for position in _outside(text, start):
        if text[position] in f",]}}{sign}":
            return start + len(text[start:position].rstrip())
    return start + len(text[start:].rstrip())


def _outside(text: str, start: int) -> Iterator[int]:
    """The positions that are in no quotes and no inner brackets."""
    position, open = start, ""
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        if text[position] in "'\"":
            position = _past_quote(text, position)
            continue
        if not open:
            yield position
        if text[position] in CLOSING:
            open += CLOSING[text[position]]
        elif open and text[position] == open[-1]:
            open = open[:-1]
        position += 1


def _past_quote(text: str, start: int) -> int:
    position = start + 1
    while position < len(text) and text[position] != text[start]:
        position += 2 if text[position] == "\\" else 1
    return position + 1
