"""Composes a recipe as Hydra does, in three passes:

    parse    the overrides of the command line (`overrides`), and each file when it is first included
             (`config_store`)
    include  the configs that the defaults lists and the command line choose, in Hydra's order (`includes`,
             which reads the lists with `defaults_lists`)
    merge    the configs in that order, then the layouts and the values of the command line (`merging`)

Only the overrides' grammar is Hydra's own code. The rest follows Hydra's rules, and every value and every
mistake keeps its file, line and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose import overrides
from meshctl.recipe.compose.config_store import PRIMARY, UNREADABLE, ConfigStore
from meshctl.recipe.compose.defaults_lists import DefaultsLists
from meshctl.recipe.compose.includes import Included, include
from meshctl.recipe.compose.merging import merge
from meshctl.recipe.compose.yaml_tree import Node


@dataclass(frozen=True)
class Composed:
    """A recipe with all its files and overrides merged, before its keys are interpreted."""

    tree: Node
    found: tuple[Diagnostic, ...]
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    """(file name, lines) of each file that was read. An override counts as a file of one line."""
    chosen: tuple[str, ...] = ()
    """The choices of the defaults lists, e.g. `layout@components.actor.parallel`."""

    @property
    def unreadable(self) -> bool:
        return any(diagnostic.code in UNREADABLE for diagnostic in self.found)


def compose(
    recipe: Path,
    texts: Sequence[str],
    cwd: Path,
    folders: Sequence[Path],
    held: Mapping[str, bytes] = MappingProxyType({}),
) -> Composed:
    """Composes the recipe in a file, with config groups from `folders` and the overrides `texts`.

    `held` maps real paths to bytes that are used in place of the files. Never raises: errors are in the
    result's `found`, and wrong values are not in its tree.
    """
    store = ConfigStore(recipe, cwd, folders, held)
    name = store.display_name(recipe)
    given, found = overrides.parse(texts)
    lists = DefaultsLists(store)
    choices, values = lists.sort(given)
    root, included = Node({}, Span(name, 1, 1)), Included()
    if store.config(PRIMARY).tree is not None:
        included = include(lists, choices)
        root, wrong = merge(root, included, values)
        found += wrong
    found = [*store.found, *lists.found, *found]
    if not found and not root.value:
        found.append(_empty(store, name))
    lines = tuple((overrides.file_of(number), (text,)) for number, text in enumerate(texts, 1))
    chosen = tuple(key for config in included.configs for key, _ in config.choices)
    return Composed(root, tuple(dict.fromkeys(found)), (*store.sources, *lines), chosen)


def _empty(store: ConfigStore, name: str) -> Diagnostic:
    _, lines = next(iter(store.sources), (name, ()))
    what = "has only comments" if lines else "is empty"
    if any(line.split("#")[0].strip() for line in lines):
        what = "has no keys"
    message = f"`{name}` {what}; a recipe has at least a group and what runs on it"
    return Diagnostic("MC004", message, Span(name, 1, 1), help="`meshctl init` writes a recipe that runs")
