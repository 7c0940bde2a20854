"""Composes a recipe as Hydra does, in three passes:

    parse    the overrides of the command line (`overrides`), and each file when it is first included
             (`config_store`)
    include  the configs that the defaults lists and the command line choose, in Hydra's order (`includes`,
             which reads the lists with `defaults_lists`)
    merge    the configs in that order, then the layouts and the values of the command line

Only the overrides' grammar is Hydra's own code. The rest follows Hydra's rules, and every value and every
mistake keeps its file, line and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose import overrides, yaml_tree
from meshctl.recipe.compose.config_store import PRIMARY, UNREADABLE, ConfigStore
from meshctl.recipe.compose.defaults_lists import DefaultsLists
from meshctl.recipe.compose.includes import Include, Included, include
from meshctl.recipe.compose.overrides import ENGINE_KEY, Override, is_engine, is_layout
from meshctl.recipe.compose.yaml_tree import MISSING, Node
from meshctl.recipe.engine_fields import ENGINE
from meshctl.recipe.fields import RECIPE, is_key, keys_below, section_at
from meshctl.recipe.fixes import renamed
from meshctl.recipe.mistakes import location_of, nearest_key, renamed_key
from meshctl.text.english import did_you_mean, listed


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
        message = f"`{name}` has no keys; a recipe has at least a group and what runs on it"
        help = "`meshctl init` writes a recipe that runs"
        found.append(Diagnostic("MC004", message, Span(name, 1, 1), help=help))
    lines = tuple((overrides.file_of(number), (text,)) for number, text in enumerate(texts, 1))
    chosen = tuple(key for config in included.configs for key, _ in config.choices)
    return Composed(root, tuple(dict.fromkeys(found)), (*store.sources, *lines), chosen)


# Merging


def merge(root: Node, included: Included, values: Iterable[Override]) -> tuple[Node, list[Diagnostic]]:
    """Returns (tree, diagnostics): `root` with the configs, the layouts of the command line and then its
    values."""
    found: list[Diagnostic] = []
    for config in included.configs:
        tree, path = config.file.tree, config.path
        if tree is None:
            continue
        if is_layout(config.package) and root.at(path) is not None and not config.is_part_of_group:
            root = yaml_tree.put(root, path, tree)
        else:
            new = yaml_tree.nested(path, tree)
            engine = new.get(ENGINE_KEY)
            if engine is not None and engine.value in ENGINE.keys:  # one that is only named has no options
                options = Node({engine.value: Node({}, engine.span, engine.span)}, engine.span, engine.key)
                new = replace(new, value={**new.value, ENGINE_KEY: options})
            root = yaml_tree.merge(_without_others(root, new), new)
    changes = [_replaced(override, configs) for override, configs in included.replacements]
    changes += [partial(_applied, override) for override in values]
    for change in changes:
        result = change(root)
        if isinstance(result, Node):
            root = result
        else:
            found.append(result)
    if (hydra := root.get("hydra")) is not None:
        message, span = "a recipe cannot configure Hydra itself", hydra.key or hydra.span
        found.append(Diagnostic("MC216", message, span, help="remove it"))
        root = yaml_tree.without(root, ("hydra",))
    return root, found


def _replaced(override: Override, configs: Iterable[Include]) -> Callable[[Node], Node | Diagnostic]:
    """Returns the function that replaces the layout of a component, or the engine, by one that the command
    line chooses, or returns a diagnostic if the component does not exist."""
    layout, span = Node({}, override.value_span, override.key_span), override.key_span
    for config in configs:
        layout = yaml_tree.merge(layout, config.file.tree) if config.file.tree else layout
    layout = replace(layout, key=span)
    if not is_layout(override.parsed.package):
        return lambda root: _chosen(root, layout)
    path = tuple(str(override.parsed.package).removeprefix("_global_.").split("."))

    def replaced(root: Node) -> Node | Diagnostic:
        if root.at(path[:-1]) is not None:
            return yaml_tree.put(root, path, layout)
        names = [key for key, _ in (root.get("components") or Node({}, root.span)).items()]
        before, _, after = override.target.partition(f".{path[1]}.")
        fixes = renamed(span, path[1], names, after=f".{after}", before=f"{before}.")
        message, help = f"component `{path[1]}` does not exist", did_you_mean(path[1], names)
        return Diagnostic("MC203", message, span, help=help, fixes=fixes)

    return replaced


# Overrides of values


def _applied(override: Override, root: Node) -> Node | Diagnostic:
    """Returns the tree with one value set, added or deleted, or a diagnostic if the override does not apply
    to the tree."""
    if beyond := _unreachable(root, override):
        return beyond
    old, parsed, target = root.at(override.path), override.parsed, override.target
    if override.is_deletion:
        return _delete(root, override, old)
    new = override.node()
    is_value = not (new.is_mapping or new.is_list)
    if parsed.is_add() and old is not None and old.value not in (None, MISSING) and is_value:
        help = f"`{target}={override.value_text}` replaces it"
        plus = Span(override.file, 1, override.text.index("+") + 1)
        message, here, fix = f"`{target}` already exists", old.span.with_word("here"), Fix(plus, "+", "")
        return Diagnostic("MC204", message, override.key_span, (here,), help, fixes=(fix,))
    needs_key = not parsed.is_add() and not parsed.is_force_add()
    if needs_key and old is None and not is_key(override.path, root):
        return _unknown(root, override, "MC203", f"`{target}` is not in the recipe")
    if is_engine(override.group):
        return _chosen(root, new) if new.is_mapping else yaml_tree.put(root, override.path, new)
    if old is not None and new.is_mapping and not is_layout(override.group):
        new = yaml_tree.merge(old, new)
    return yaml_tree.put(root, override.path, new)


def _delete(root: Node, override: Override, old: Node | None) -> Node | Diagnostic:
    expected = override.parsed.value()
    if old is None:
        message = f"`{override.target}` cannot be deleted: it is not in the recipe"
        return _unknown(root, override, "MC209", message)
    if expected is not None and expected != yaml_tree.plain(old):
        message = f"`{override.target}` cannot be deleted: its value is not {override.value_text}"
        return Diagnostic("MC209", message, override.value_span, (old.span.with_word("its value"),))
    return yaml_tree.without(root, override.path)


def _unknown(root: Node, override: Override, code: str, message: str) -> Diagnostic:
    """Returns the diagnostic for an override of a key that the recipe does not have, at the first part of the
    key that neither exists nor is a key of recipes."""
    path = override.path
    absent = [length for length in range(1, len(path) + 1) if root.at(path[:length]) is None]
    part = next((length for length in absent if not is_key(path[:length], root)), absent[-1]) - 1
    parent, key, span = root.at(path[:part]), path[part], override.part_span(part)
    existing = [name for name, _ in parent.items()] if parent is not None else []
    siblings = [name for name in dict.fromkeys((*existing, *keys_below(path[:part], root))) if name != key]
    if near := nearest_key(key, siblings):
        help = f"did you mean `{'.'.join((*path[:part], near, *path[part + 1 :]))}`?"
        return Diagnostic(code, message, span, help=help, fixes=renamed_key(span, key, siblings))
    help = f"to add it, write +{override.text.strip()}"
    if (section := section_at(path[:part], root)) is not None:
        location = location_of(key, section, path[:part], override.node(), root)
        help = f"its keys are {listed(section.keys)}"
        if location and location.path and part == len(path) - 1:
            help = f"write {'.'.join(location.path)}={override.value_text}"
        elif location:
            help = location.help
        elif section is RECIPE:
            help = f"values of your own go under `vars`: +vars.{override.text.strip()}"
    return Diagnostic(code, message, span, help="" if override.is_deletion else help)


def _unreachable(root: Node, override: Override) -> Diagnostic | None:
    for length in range(1, len(override.path)):
        node, key = root.at(override.path[:length]), override.path[length]
        if node is None:
            return None
        where, span = ".".join(override.path[:length]), override.part_span(length)
        if node.is_list and node.get(key) is None:
            return Diagnostic("MC203", f"the list `{where}` has no item {key}", span, (node.span,))
        if not node.is_list and not node.is_mapping and node.value is not None:
            rest = ".".join(override.path[length:])
            help = f"replace it: {where}={{{rest}: {override.value_text}}}"
            message, second = (
                f"`{where}` is a single value and has no keys",
                node.span.with_word(f"`{where}`"),
            )
            return Diagnostic("MC220", message, span, (second,), help)
    return None


# The engine: there is one, so a later choice replaces an earlier one of another name


def _without_others(root: Node, new: Node) -> Node:
    """Returns a tree without the engines that another tree, which is merged into it, does not name."""
    old, engine = root.get(ENGINE_KEY), new.get(ENGINE_KEY)
    names = [name for name, _ in engine.items()] if engine else []
    if old is None or not old.is_mapping or not names:
        return root
    kept = {name: item for name, item in old.items() if name in names}
    return replace(root, value={**root.value, ENGINE_KEY: replace(old, value=kept)})


def _chosen(root: Node, new: Node) -> Node:
    """Returns a tree with the engine that the command line chooses. Options that the recipe states for it
    stay, where `new` has no others."""
    root = _without_others(root, yaml_tree.nested((ENGINE_KEY,), new))
    old = root.get(ENGINE_KEY)
    return yaml_tree.put(root, (ENGINE_KEY,), yaml_tree.merge(old, new) if old and old.is_mapping else new)
