"""Candidates for an override: keys of the recipe, keys of the field table, config groups, and values.

groups.train.       ranks=  device_type=  ...         one part of a key at a time; a dot follows a mapping
+groups.judge.      ranks=  ...                       keys that are not in the recipe
~pipeline.          eval  exam                        keys that are in the recipe
layout@             layout@components.actor.parallel=
...device_type=     cuda  npu  mps  cpu                words, and names of the recipe

The recipe is composed as by `validate`, and not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from meshctl.cli.completion import Candidate
from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.compose.composition import compose
from meshctl.recipe.compose.folders import SUFFIXES, config_folders, files, is_dir, list_groups
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.device_types import DeviceType
from meshctl.recipe.engine_fields import OPTIONS as ENGINE_OPTIONS
from meshctl.recipe.field_types import Boolean, Endpoint, Text, Texts, Type, Word
from meshctl.recipe.fields import (
    CALL,
    CLUSTER,
    COMPONENT,
    GROUP,
    POOL,
    RECIPE,
    RUN,
    STAGE,
    SYNC,
    field_at,
    keys_below,
    section_at,
)
from meshctl.recipe.model import stage_path
from meshctl.recipe.section_types import Nested
from meshctl.recipe.tracker_fields import NAMES as TRACKERS
from meshctl.recipe.tracker_fields import Trackers

WITHOUT_SHORTHAND = (RECIPE, CLUSTER, POOL, GROUP, COMPONENT, CALL, SYNC, STAGE, RUN, *ENGINE_OPTIONS)
"""Sections without a short form: their values are always mappings."""
PLAIN_KEY = re.compile(r"[\w$-][\w$:-]*")
"""A key that needs no quotes in an override."""
NAMED = ("groups", "components", "pipeline", "vars")
DESCRIBING_KEYS = ("_target_", "call", "sync", "device_type")
"""Keys whose value is the description of a group, component or stage."""


@dataclass(frozen=True)
class Outline:
    root: Node = Node({}, Span("", 1, 1))
    folders: tuple[Path, ...] = ()
    """The folders that contain config groups."""
    chosen: tuple[str, ...] = ()
    """The choices of the defaults lists, as `group@package`."""

    def names(self, *path: str) -> list[str]:
        """Returns the keys of the mapping at a path."""
        node = self.root.at(path)
        return [key for key, _ in node.items()] if node is not None else []

    def stages(self) -> list[str]:
        """Returns the names of all stages; a stage of a block is BLOCK.STAGE."""
        found: list[str] = []
        for name in self.names("pipeline"):
            inner = self.names("pipeline", name, "stages")
            found += [f"{name}.{stage}" for stage in inner] if inner else [name]
        return found

    def text(self, *path: str) -> str:
        """Returns the text of a value in the file; empty for a mapping, a list and a missing value."""
        node = self.root.at(path)
        return node.written if node is not None else ""

    def options(self, group: str) -> Iterator[tuple[str, str]]:
        """Yields (option, description) for each file of a config group. The description is the file's first
        line if that is a comment."""
        found = {
            file.stem: file for folder in self.folders[::-1] for file in files(folder / group, *SUFFIXES)
        }
        for name, file in found.items():
            if not file.is_file():
                continue  # to open a pipe would wait for its writer
            first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            yield name, first[1:].strip() if first.startswith("#") else ""


def outline(recipe: Path) -> Outline:
    """Returns the outline of a recipe, or of the recipe of a run directory."""
    file = recipe / "recipe.yaml" if is_dir(recipe) else recipe
    folders = tuple(dict.fromkeys(config_folders(file.parent, ())))
    composed = compose(file, [], Path.cwd(), folders)
    return Outline(composed.tree, folders, composed.chosen)


def overrides(recipe: Outline, word: str) -> Iterator[Candidate]:
    """Yields the candidates for an override that begins with `word`."""
    sign = next(sign for sign in ("++", "+", "~", "") if word.startswith(sign))
    key, equals, _ = word.removeprefix(sign).partition("=")
    if equals:
        found = _values(recipe, key)
        sign = f"{sign}{key}="
    elif "@" in key:
        found = _choices(recipe, sign, key)
    else:
        found = iter([*_keys(recipe, sign, key), *_groups(recipe, sign, key)])
    for one in found:
        yield Candidate(f"{sign}{one.text}", one.description)


# Keys


def _keys(recipe: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    path = tuple(begun.split(".")[:-1])
    section = section_at(path, recipe.root)
    known: tuple[str, ...] = ()
    if section and "+" in sign:
        known = section.keys
    elif sign != "~":
        known = keys_below(path, recipe.root)
    for key in dict.fromkeys((*_present(recipe, path), *known)):
        if PLAIN_KEY.fullmatch(key) and not (section is RECIPE and key == "defaults"):
            field = section.by_key.get(key) if section else None
            description = field.doc if field else _description(recipe, *path, key)
            for text in _forms(recipe, sign, (*path, key)):
                yield Candidate(text, description)


def _present(recipe: Outline, path: KeyPath) -> list[str]:
    """Returns the keys of a mapping or the indices of a list in the recipe."""
    node = recipe.root.at(path)
    if node is not None and node.is_list:
        return [str(index) for index in range(len(node.value))]
    return recipe.names(*path)


def _forms(recipe: Outline, sign: str, path: KeyPath) -> Iterator[str]:
    """Yields a key with a dot if it can be a mapping, and with `=` if it can have a value."""
    text, section = ".".join(path), section_at(path, recipe.root)
    has_names = len(path) == 1 and path[0] in NAMED
    if sign == "~":
        yield f"{text}." if has_names else text
        return
    if section or has_names or _present(recipe, path) or keys_below(path, recipe.root):
        yield f"{text}."
    is_there_already = sign == "+" and recipe.root.at(path) is not None
    if not has_names and section not in WITHOUT_SHORTHAND and not is_there_already:
        yield f"{text}="


def _description(recipe: Outline, *path: str) -> str:
    return next((text for key in DESCRIBING_KEYS if (text := recipe.text(*path, key))), "")


# Config groups


def _groups(recipe: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    """Yields config groups: `layout@`, and the groups of the defaults lists."""
    if "." in begun:
        return
    chosen = {one.partition("@")[0] for one in recipe.chosen}
    for group in list_groups(recipe.folders):
        if group == "layout" and (sign != "~" or group in chosen):
            yield Candidate(f"{group}@", "a layout for a component")
        elif group in recipe.chosen and sign != "+":
            yield Candidate(group if sign == "~" else f"{group}=")
        elif group in chosen or "+" in sign:
            yield Candidate(f"{group}@")


def _choices(recipe: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    """Yields a config group with each package at which the defaults lists use it, and for `layout` with each
    component."""
    group, _, _ = begun.partition("@")
    places = [one for one in recipe.chosen if one.startswith(f"{group}@")]
    if group == "layout" and sign != "~":
        places += [f"{group}@components.{name}.parallel" for name in recipe.names("components")]
    for place in dict.fromkeys(places):
        component = place.split(".")[1] if place.count(".") > 1 else ""
        target = recipe.text("components", component, "_target_")
        yield Candidate(place if sign == "~" else f"{place}=", target)


# Values


def _values(recipe: Outline, key: str) -> Iterator[Candidate]:
    """Yields the candidates for a value: the options of a config group, or by the type of its field."""
    group = key.partition("@")[0]
    if "@" in key or ("." not in key and group in list_groups(recipe.folders)):
        yield from (Candidate(option, description) for option, description in recipe.options(group))
        return
    path = tuple(key.split("."))
    match _type(recipe, path):
        case Endpoint():
            yield from (Candidate(f"{one.text}.", one.description) for one in _names(recipe, "components"))
        case Text(names=names) | Texts(names=names) if names:
            yield from _names(recipe, names, other_than=path[1] if path[0] == names else "")
        case Boolean():
            yield from (Candidate("true"), Candidate("false"))
        case Nested(shorthand=Word(words=words)) | Word(words=words) | DeviceType(words=words):
            yield from (Candidate(word, meaning) for word, meaning in words.items())
        case Trackers():
            yield from (Candidate(name, doc) for name, doc in TRACKERS.items())


def _type(recipe: Outline, path: KeyPath) -> Type | None:
    inner = path[4:] if path[2:3] == ("stages",) else path[2:]
    if path[0] == "pipeline" and inner[:1] == ("in",) and len(inner) < 3:
        return Texts("pipeline")
    field = field_at(path, recipe.root)
    return field.type if field else None


def _names(recipe: Outline, top: str, other_than: str = "") -> Iterator[Candidate]:
    for name in recipe.stages() if top == "pipeline" else recipe.names(top):
        path = stage_path(name) if top == "pipeline" else (top, name)
        if name != other_than:
            yield Candidate(name, _description(recipe, *path))
