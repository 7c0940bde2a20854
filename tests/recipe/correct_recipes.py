"""Reads the recipes in `correct/`, with the place of each key and value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import Loaded, load

FOLDER = Path(__file__).parent / "correct"
KINDS = {"int": "number", "float": "number", "bool": "bool", "null": "null", "map": "mapping", "seq": "list"}


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
    """True if it stands in brackets."""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def is_keyed(self) -> bool:
        return self.key[0] != self.key[1]

    @property
    def is_own(self) -> bool:
        """True if the key is the product's, and not the user's."""
        top, path = self.path[0], self.path
        if top == "pipeline" and path[2:3] == ("stages",) and len(path) > 3:
            path = (top, *path[3:])  # a stage of a block
        if top in ("vars", "defaults"):
            return len(path) == 1
        if top in ("groups", "components", "pipeline"):
            is_free = any(name in ("args", "env") for name in path[2:-1])
            return len(path) != 2 and not is_free and not (len(path) == 4 and path[2] == "in")
        return True

    def is_at(self, pattern: str) -> bool:
        """Returns whether the path fits a pattern of names and `*`."""
        wanted = pattern.split(".")
        return len(wanted) == len(self.path) and all(
            want in ("*", name) for name, want in zip(self.path, wanted, strict=True)
        )


@dataclass(frozen=True)
class Correct:
    """A correct recipe."""

    name: str
    text: str
    items: tuple[Item, ...]

    def items_at(self, *patterns: str) -> list[Item]:
        return [item for pattern in patterns for item in self.items if item.is_at(pattern)]

    def written(self, item: Item) -> str:
        return self.text[slice(*item.value)]

    def line(self, offset: int) -> tuple[int, int]:
        """Returns the offsets of the line around an offset, without its line break."""
        start, stop = self.text.rfind("\n", 0, offset) + 1, self.text.find("\n", offset)
        return start, len(self.text) if stop < 0 else stop

    def block(self, item: Item) -> tuple[int, int]:
        """Returns the offsets of all lines of an item in block style, with their line breaks."""
        return self.line(item.key[0])[0], self.line(max(item.value[1] - 1, item.key[1]))[1] + 1

    def is_one_line(self, item: Item) -> bool:
        return "\n" not in self.written(item) and self.line(item.key[0]) == self.line(item.value[0])


def read(path: Path) -> Correct:
    text = path.read_text(encoding="utf-8")
    return Correct(path.name, text, tuple(_items(yaml.compose(text, Loader=yaml.SafeLoader), (), False)))


def _items(node: Any, path: tuple[str, ...], is_flow: bool) -> Iterator[Item]:
    is_flow = is_flow or bool(getattr(node, "flow_style", False))
    if isinstance(node, yaml.ScalarNode):
        return
    for index, value in enumerate(node.value):
        if isinstance(node, yaml.MappingNode):
            key, value = value
            name, span = key.value, (key.start_mark.index, key.end_mark.index)
        else:
            name, span = str(index), (value.start_mark.index,) * 2
        kind = KINDS.get(value.tag.rpartition(":")[2], "text")
        yield Item((*path, name), span, (value.start_mark.index, _stop(value)), kind, is_flow)
        yield from _items(value, (*path, name), is_flow)


def _stop(node: Any) -> int:
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    return _stop(node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1])


CORRECT = tuple(read(path) for path in sorted(FOLDER.glob("*.yaml")))
TEXTS = {recipe.name: recipe.text for recipe in CORRECT}


def loaded(name: str, text: str, *overrides: str) -> Loaded:
    """Loads one of the recipes with another text."""
    held = {str((FOLDER / name).resolve()): text.encode()}
    return load(name, overrides, FOLDER, environ={"HOME": "/home/me"}, held=held)


def errors_of(name: str, *changes: tuple[str, str]) -> list[Diagnostic]:
    """Returns the errors of one of the recipes in which pieces of the text are replaced."""
    text = TEXTS[name]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return list(loaded(name, text).report.errors)
