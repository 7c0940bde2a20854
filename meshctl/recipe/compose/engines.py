"""The engine of a composed recipe: there is one, so a later choice replaces an earlier one of another name.

engine: ssh            the same as `engine: {ssh: {}}`, to which overrides such as engine.ssh.hosts=[a] add
engine=slurm           in place of `engine: {ssh: ...}`; the options of `engine: {slurm: ...}` stay
"""

from __future__ import annotations

from dataclasses import replace

from meshctl.recipe.compose import yaml_tree
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.engine_fields import ENGINE

KEY = "engine"
"""The key of recipes, and the config group."""


def is_engine(package: str | None) -> bool:
    """Returns whether a config at this package is the engine of the recipe."""
    return (package or "").removeprefix("_global_.") == KEY


def with_options(tree: Node) -> Node:
    """Returns a tree whose engine, if it is only named, has an empty mapping of options."""
    engine = tree.get(KEY)
    if engine is None or engine.value not in ENGINE.keys:
        return tree
    options = Node({engine.value: Node({}, engine.span, engine.span)}, engine.span, engine.key)
    return replace(tree, value={**tree.value, KEY: options})


def without_others(root: Node, new: Node) -> Node:
    """Returns a tree without the engines that another tree, which is merged into it, does not name."""
    old, engine = root.get(KEY), new.get(KEY)
    names = [name for name, _ in engine.items()] if engine else []
    if old is None or not old.is_mapping or not names:
        return root
    kept = {name: item for name, item in old.items() if name in names}
    return replace(root, value={**root.value, KEY: replace(old, value=kept)})


def chosen(root: Node, new: Node) -> Node:
    """Returns a tree with the engine that the command line chooses. Options that the recipe states for it
    stay, where `new` has no others."""
    root = without_others(root, yaml_tree.nested((KEY,), new))
    old = root.get(KEY)
    return yaml_tree.put(root, (KEY,), yaml_tree.merge(old, new) if old and old.is_mapping else new)
