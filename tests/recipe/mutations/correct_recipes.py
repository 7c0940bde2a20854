"""Reads correct recipes, with the place of each key and value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent.parent / "correct"


@dataclass(frozen=True)
class Item:
    """One key of a mapping with its value, or one item of a list, by offsets in the text."""

    path: tuple[str, ...]
    key: tuple[int, int]
    """The key, or the empty place before an item of a list."""
    value: tuple[int, int]
    kind: str
    """`text`, `number`, `bool`, `mapping`, `list` or `null`."""
    is_flow: bool
    """Whether it stands in brackets."""

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Correct:
    """A correct recipe."""

    name: str
    text: str
    items: tuple[Item, ...]

    def items_at(self, *pattern: str) -> list[Item]:
        """Returns the items whose path fits a pattern of names and `*`."""
        return [item for item in self.items if _fits(item.path, pattern)]

    def written(self, item: Item) -> str:
        return self.text[slice(*item.value)]

    def line(self, offset: int) -> tuple[int, int]:
        """Returns the offsets of the line around an offset, without its line break."""
        start = self.text.rfind("\n", 0, offset) + 1
        stop = self.text.find("\n", offset)
        return start, len(self.text) if stop < 0 else stop

    def block(self, item: Item) -> tuple[int, int]:
        """Returns the offsets of all lines of an item in block style, with their line breaks."""
        start = self.line(item.key[0])[0]
        stop = self.line(max(item.value[1] - 1, item.key[1]))[1] + 1
        return start, stop


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(
        want in ("*", name) for name, want in zip(path, pattern, strict=True)
    )


def read(path: Path) -> Correct:
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return Correct(path.name, text, tuple(_items(root, (), False)))


def _items(node: Any, path: tuple[str, ...], is_flow: bool) -> Iterator[Item]:
    is_flow = is_flow or bool(getattr(node, "flow_style", False))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            span = (key.start_mark.index, key.end_mark.index)
            yield Item(here, span, _span(value), _kind(value), is_flow)
            yield from _items(value, here, is_flow)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here, start = (*path, str(index)), value.start_mark.index
            yield Item(here, (start, start), _span(value), _kind(value), is_flow)
            yield from _items(value, here, is_flow)


def _span(node: Any) -> tuple[int, int]:
    stop = node.end_mark.index
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        last = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
        stop = _span(last)[1]
    return node.start_mark.index, stop


def _kind(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    if isinstance(node, yaml.SequenceNode):
        return "list"
    kinds = {"int": "number", "float": "number", "bool": "bool", "null": "null"}
    return kinds.get(node.tag.rpartition(":")[2], "text")


CORRECT = tuple(read(path) for path in sorted(FOLDER.glob("*.yaml")))
