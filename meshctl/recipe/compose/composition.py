"""Which text says what: a recipe composed as Hydra composes, by nodes that know where they were written.

Hydra answers two questions: which files, in which order, mounted where (`listing.py`), and what an override
means (`overrides.py`). Merging is done here, so every value keeps its file, line and column.

A layout (a config group mounted at `components.X.parallel`) is one value: given whole, by a defaults list or
the command line, it replaces what stood there; a single key changes it in place.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose import overrides, yaml_tree
from meshctl.recipe.compose.config_store import PRIMARY, UNREADABLE, Shelf
from meshctl.recipe.compose.defaults_entry import Mounted
from meshctl.recipe.compose.overrides import Given, is_layout
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.fixes import renamed
from meshctl.text.english import did_you_mean


@dataclass(frozen=True)
class Composed:
    """What the recipe says as a whole, before anything in it is understood."""

    tree: Node
    found: tuple[Diagnostic, ...]
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    """(file, its lines) of all that was read, overrides among them."""

    @property
    def unreadable(self) -> bool:
        return any(diagnostic.code in UNREADABLE for diagnostic in self.found)


def compose(
    recipe: Path,
    texts: Sequence[str],
    cwd: Path,
    folders: Iterable[Path],
    held: Mapping[str, bytes] = MappingProxyType({}),
) -> Composed:
    """The recipe of this file, with its config groups from `folders` and the overrides of a command line."""
    shelf = Shelf(recipe, cwd, folders, held=held)
    given = [one for one in overrides.parsed(texts, shelf.is_group, shelf.found) if _is_possible(shelf, one)]
    root = _composed(shelf, given) if shelf.readable(PRIMARY) else Node({}, Span(shelf.shown(recipe), 1, 1))
    if not shelf.found and not root.value:
        _say_empty(shelf)
    lines = [(overrides.file_of(number), (text,)) for number, text in enumerate(texts, 1)]
    return Composed(root, tuple(dict.fromkeys(shelf.found)), (*shelf.sources(), *lines))


def _say_empty(shelf: Shelf) -> None:
    text = shelf.text(PRIMARY)
    name, lines = (text.name, text.lines) if text else (shelf.shown(shelf.recipe), ())
    what = (
        "has no keys"
        if any(line.split("#")[0].strip() for line in lines)
        else "has only comments"
        if lines
        else "is empty"
    )
    help = "`meshctl init` writes a recipe that runs"
    shelf.say(
        "MC004", f"`{name}` {what}, a recipe says at least what runs where", Span(name, 1, 1), help=help
    )


def _is_possible(shelf: Shelf, given: Given) -> bool:
    """Whether what an override chooses is there."""
    if given.is_choice:
        return shelf.has_options(given)
    if given.parsed.package is None and "/" not in given.parsed.key_or_group:
        return True
    name = given.parsed.key_or_group
    if shelf.is_group(name):
        help = f"to set values, name their place: {given.parsed.package or 'KEY'}={given.value_text}"
        shelf.say("MC206", f"an option of `{name}` is a name, this is a mapping", given.value, help=help)
        return False
    fixes = renamed(given.key, name, shelf.groups(), after=given.bare[len(name) :])
    shelf.say(
        "MC202",
        f"there is no config group `{name}`",
        given.key,
        help=did_you_mean(name, shelf.groups()),
        fixes=fixes,
    )
    return False


def _composed(shelf: Shelf, given: Sequence[Given]) -> Node:
    layouts = [one for one in given if one.is_layout and not one.parsed.is_delete()]
    shelf.chosen = frozenset(one.bare for one in given if one.is_choice)
    root = Node({}, Span(shelf.shown(shelf.recipe), 1, 1))
    for default in shelf.defaults(
        PRIMARY, [one for one in given if one.is_choice and one not in layouts], root.span.file
    ):
        root = _mounted(root, shelf, default)
    for layout in layouts:
        root = _with_layout(root, shelf, layout)
    for one in given:
        if not one.is_choice:
            root = overrides.applied(root, one, shelf.found)
    if (hydra := root.get("hydra")) is not None:
        shelf.say(
            "MC216", "a recipe does not configure Hydra itself", hydra.key or hydra.span, help="remove it"
        )
        root = yaml_tree.without(root, ("hydra",))
    return root


def _mounted(root: Node, shelf: Shelf, default: Mounted) -> Node:
    """The tree with one more file in it."""
    tree = shelf.tree(default)
    if tree is None:
        return root
    path = tuple(default.package.split(".")) if default.package else ()
    if is_layout(default.package) and root.at(path) is not None and not _is_part(default):
        return yaml_tree.put(root, path, tree)
    return yaml_tree.merge(root, yaml_tree.nested(path, tree))


def _is_part(default: Mounted) -> bool:
    """Whether a layout's file is included by another layout, into which it merges."""
    return default.parent not in (None, PRIMARY) and posixpath.dirname(
        str(default.parent)
    ) == posixpath.dirname(str(default.config_path))


def _with_layout(root: Node, shelf: Shelf, given: Given) -> Node:
    """A layout of the command line replaces what there was, whether or not a defaults list named one."""
    path = tuple(str(given.parsed.package).removeprefix("_global_.").split("."))
    if root.at(path[:-1]) is None:
        components = root.get("components")
        names = [name for name, _ in components.items()] if components else []
        before, _, after = given.bare.partition(f".{path[1]}.")
        fixes = renamed(given.key, path[1], names, f".{after}", f"{before}.")
        shelf.say(
            "MC203",
            f"there is no component `{path[1]}`",
            given.key,
            help=did_you_mean(path[1], names),
            fixes=fixes,
        )
        return root
    layout = Node({}, given.value, given.key)
    for tree in shelf.layouts(given):
        layout = yaml_tree.merge(layout, tree)
    return yaml_tree.put(root, path, replace(layout, key=given.key))
