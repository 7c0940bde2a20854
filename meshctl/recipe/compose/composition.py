"""Composes a recipe as Hydra does, in three passes:

    parse    the overrides of the command line (`overrides`), and each file when it is first included
             (`config_store`)
    include  the configs that the defaults lists and the command line choose, in Hydra's order (`includes`,
             which reads the lists with `defaults_lists`)
    merge    the configs in that order (`yaml_tree`), then the layouts and the values of the command line
             (`assignments`)

Only the overrides' grammar is Hydra's own code. The rest follows Hydra's rules, and every value and every
mistake keeps its file, line and column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose import assignments, overrides, yaml_tree
from meshctl.recipe.compose.config_store import PRIMARY, UNREADABLE, ConfigStore
from meshctl.recipe.compose.defaults_lists import DefaultsLists
from meshctl.recipe.compose.includes import Include, includes_of, includes_of_choice
from meshctl.recipe.compose.overrides import Override, is_layout
from meshctl.recipe.compose.unknown_keys import with_meant
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.fixes import renamed
from meshctl.text.english import did_you_mean, nearest


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
    root = Node({}, Span(name, 1, 1))
    entries: list[Include] = []
    if store.config(PRIMARY).tree is not None:
        layouts = [one for one in choices if is_layout(one.parsed.package) and not one.is_deletion]
        others = [one for one in choices if one not in layouts]
        entries = includes_of(lists, others, layouts)
        chosen_layouts = [(one, _layout(lists, one)) for one in layouts]
        root = _merged(root, store, entries)
        root = _with_layouts(root, chosen_layouts, found)
        root = _with_values(root, values, found)
        root = _without_hydra(root, found)
        if not lists.found:
            root = _without_layouts_of_nobody(root, store, entries, found)
    found = [*store.found, *lists.found, *found]
    if not found and not root.value:
        found.append(_empty(store, name))
    lines = tuple((overrides.file_of(number), (text,)) for number, text in enumerate(texts, 1))
    chosen = tuple(choice for entry in entries for choice, _ in _chosen(store, entry))
    return Composed(root, tuple(dict.fromkeys(found)), (*store.sources, *lines), chosen)


def _chosen(store: ConfigStore, entry: Include) -> Iterator[tuple[str, Span]]:
    """Yields (`group@package`, span) for each option that the defaults list of one config chooses."""
    entries = store.config(entry.config).defaults
    for item in entries.value if entries is not None and entries.is_list else ():
        yield from ((key.split(" ")[-1], option.key or option.span) for key, option in item.items())


def _empty(store: ConfigStore, name: str) -> Diagnostic:
    _, lines = next(iter(store.sources), (name, ()))
    what = "has only comments" if lines else "is empty"
    if any(line.split("#")[0].strip() for line in lines):
        what = "has no keys"
    message = f"`{name}` {what}; a recipe has at least a group and what runs on it"
    return Diagnostic("MC004", message, Span(name, 1, 1), help="`meshctl init` writes a recipe that runs")


def _merged(root: Node, store: ConfigStore, entries: Iterable[Include]) -> Node:
    for entry in entries:
        tree = store.config(entry.config).tree
        if tree is None:
            continue
        if is_layout(entry.package) and root.at(entry.path) is not None and not entry.is_part_of_group:
            root = yaml_tree.put(root, entry.path, tree)
        else:
            root = yaml_tree.merge(root, yaml_tree.nested(entry.path, tree))
    return root


def _without_layouts_of_nobody(
    root: Node, store: ConfigStore, entries: Sequence[Include], found: list[Diagnostic]
) -> Node:
    """Removes layouts that a defaults list assigns to components which no file defines, and reports them. A
    layout stays if no defined component has a similar name."""
    components = root.get("components") or Node({}, root.span)
    layouts = {entry.package: entry.path[1] for entry in entries if is_layout(entry.package)}
    wrong = {package: name for package, name in layouts.items() if _has_layout_only(components.get(name))}
    names = [name for name, item in components.items() if not _has_layout_only(item)]
    for key, span in (choice for entry in entries for choice in _chosen(store, entry)):
        _, _, package = key.partition("@")
        name = wrong.pop(package.removeprefix("_global_."), "")
        if name and nearest(name, names):
            before, _, after = key.partition(f".{name}.")
            fixes = renamed(span, name, names, after=f".{after}", before=f"{before}.")
            message, help = f"component `{name}` does not exist", did_you_mean(name, names)
            found.append(Diagnostic("MC203", message, span, help=help, fixes=fixes))
            root = yaml_tree.without(root, ("components", name))
    return root


def _has_layout_only(component: Node | None) -> bool:
    return component is not None and {key for key, _ in component.items()} == {"parallel"}


def _layout(lists: DefaultsLists, override: Override) -> Node:
    """Returns a layout that the command line chooses, composed from its defaults list."""
    layout = Node({}, override.value_span, override.key_span)
    for entry in includes_of_choice(lists, override):
        tree = lists.store.config(entry.config).tree
        if tree is not None:
            layout = yaml_tree.merge(layout, tree)
    return replace(layout, key=override.key_span)


def _with_layouts(root: Node, layouts: Iterable[tuple[Override, Node]], found: list[Diagnostic]) -> Node:
    """Replaces the layouts of components by those that the command line chooses."""
    for override, layout in layouts:
        path = tuple(str(override.parsed.package).removeprefix("_global_.").split("."))
        if root.at(path[:-1]) is None:
            found.append(_no_component(root, override, path[1]))
        else:
            root = yaml_tree.put(root, path, layout)
    return root


def _no_component(root: Node, override: Override, name: str) -> Diagnostic:
    components = root.get("components")
    names = [key for key, _ in components.items()] if components else []
    before, _, after = override.target.partition(f".{name}.")
    fixes = renamed(override.key_span, name, names, after=f".{after}", before=f"{before}.")
    message, help = f"component `{name}` does not exist", did_you_mean(name, names)
    return Diagnostic("MC203", message, override.key_span, help=help, fixes=fixes)


def _with_values(root: Node, values: Iterable[Override], found: list[Diagnostic]) -> Node:
    for override in values:
        result = assignments.apply(root, override)
        if isinstance(result, Diagnostic):
            found.append(result)
            root = with_meant(root, override) if result.code == "MC203" else root
        else:
            root = result
    return root


def _without_hydra(root: Node, found: list[Diagnostic]) -> Node:
    hydra = root.get("hydra")
    if hydra is None:
        return root
    message, span = "a recipe cannot configure Hydra itself", hydra.key or hydra.span
    found.append(Diagnostic("MC216", message, span, help="remove it"))
    return yaml_tree.without(root, ("hydra",))
