"""What a recipe has, read in a moment for whoever completes a word of it: keys, names and values, without
Hydra and without judging.

A file and those that its defaults list names are merged roughly as Hydra would; what cannot be read is not
there. Nothing is checked: a recipe that is being written is mostly wrong.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meshctl.diagnostics import Span
from meshctl.recipe.compose.folders import SUFFIXES, config_folders, files, is_dir, is_file, list_groups
from meshctl.recipe.compose.yaml_tree import Node, merge, nested

MAX_BYTES, MAX_NODES, MAX_DEPTH, MAX_FILES = 1 << 20, 20_000, 64, 50
HERE = Span("", 1, 1)


@dataclass
class Outline:
    root: Node = Node({}, HERE)
    home: Path = Path()
    """The recipe's folder."""
    folders: tuple[Path, ...] = ()
    """Where config groups are found."""
    chosen: list[str] = field(default_factory=list)
    """What defaults lists choose, as `group@package`."""

    def names(self, *path: str) -> list[str]:
        """The keys that stand there."""
        node = self.root.at(path)
        return [key for key, _ in node.items()] if node is not None else []

    def text(self, *path: str) -> str:
        """A value as it is written; empty for a mapping, a list, and where there is none."""
        node = self.root.at(path)
        return node.value if node is not None and isinstance(node.value, str) else ""

    def groups(self) -> list[str]:
        return list_groups(self.folders)

    def options(self, group: str) -> Iterator[tuple[str, str]]:
        """The files of a config group, with the first line of each where that is a comment."""
        seen = set[str]()
        for file in [file for folder in self.folders for file in files(folder / group, *SUFFIXES)]:
            if file.stem not in seen:
                seen.add(file.stem)
                first = _text(file).partition("\n")[0]
                yield file.stem, first[1:].strip() if first.startswith("#") else ""


def outline(recipe: Path) -> Outline:
    """Of a file, or of the folder of a run."""
    file = recipe / "recipe.yaml" if is_dir(recipe) else recipe
    found = Outline(home=file.parent, folders=tuple(dict.fromkeys(config_folders(file.parent, ()))))
    reader = _Reader(found)
    found.root = reader.file(file, posixpath.curdir)
    return found


def _text(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        return data.decode("utf-8-sig") if len(data) <= MAX_BYTES else ""
    except (OSError, ValueError):
        return ""


@dataclass
class _Reader:
    found: Outline
    count: int = 0
    """Values that were built."""
    read: int = 0
    """Files."""

    def file(self, file: Path, folder: str) -> Node:
        """What a file says, with those that it includes; `folder` is where its own names begin."""
        self.read += 1
        tree = self.tree(_text(file)) if self.read <= MAX_FILES else Node({}, HERE)
        own = Node({key: item for key, item in tree.items() if key != "defaults"}, HERE)
        entries = tree.get("defaults")
        result, merged = Node({}, HERE), False
        for entry in entries.value if entries is not None and entries.is_list else ():
            if entry.value == "_self_":
                result, merged = merge(result, own), True
            else:
                result = merge(result, self.included(entry, folder))
        return result if merged else merge(result, own)

    def included(self, entry: Node, folder: str) -> Node:
        """What one entry of a defaults list brings."""
        name, _, package = str(entry.value).partition("@")
        if entry.is_mapping and len(entry.value) == 1:
            ((key, option),) = entry.items()
            group, _, package = key.split(" ")[-1].partition("@")
            self.found.chosen.append(f"{group}@{package}" if package else group)
            name, package = f"{group}/{option.value}", package or group.replace("/", ".")
        elif not isinstance(entry.value, str):
            return Node({}, HERE)
        full = posixpath.normpath(name.lstrip("/") if name.startswith("/") else posixpath.join(folder, name))
        path = tuple(package.split(".")) if package not in ("", "_global_") else ()
        for place in self.found.folders:
            for suffix in ("", *SUFFIXES):
                if full.endswith(SUFFIXES) == (not suffix) and is_file(place / f"{full}{suffix}"):
                    return nested(path, self.file(place / f"{full}{suffix}", posixpath.dirname(full)))
        return Node({}, HERE)

    def tree(self, text: str) -> Node:
        try:
            composed = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            built = self.build(composed, 0) if composed else Node({}, HERE)
        except (yaml.YAMLError, RecursionError):
            return Node({}, HERE)
        return built if built.is_mapping else Node({}, HERE)

    def build(self, node: Any, depth: int) -> Node:
        """Scalars as they are written; nothing below what is too deep or too much."""
        self.count += 1
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            return Node("", HERE)
        if isinstance(node, yaml.MappingNode):
            keys = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
            return Node({key.value: self.build(value, depth + 1) for key, value in keys}, HERE)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, depth + 1) for item in node.value], HERE)
        return Node(node.value, HERE)


def is_plain(name: str) -> bool:
    """Whether a key can stand in an override as it is."""
    return re.fullmatch(r"[\w$-][\w$:-]*", name) is not None
