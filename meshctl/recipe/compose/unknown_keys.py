"""Explains overrides of keys that a recipe does not have, and finds the key that was meant.

run.stpes=3        a misspelt key                      steps=3             a key of another section
vars.layer=3       a misspelt variable                 actor.args.lr=3     a key path without its beginning
"""

from __future__ import annotations

from meshctl.diagnostics import Diagnostic, Fix
from meshctl.recipe.compose import yaml_tree
from meshctl.recipe.compose.overrides import Override
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node, can_hold, leaves
from meshctl.recipe.fields import RECIPE
from meshctl.recipe.fixes import renamed
from meshctl.recipe.key_paths import is_key, keys_below, section_at
from meshctl.recipe.misplaced import NAMED, location_of
from meshctl.recipe.suggestions import nearest_key
from meshctl.text.english import listed

MAX_MEANT = 3
"""Maximum number of key paths that a help proposes."""


def unknown(root: Node, override: Override) -> Diagnostic:
    """Returns the diagnostic for an override of a key that is not in the recipe."""
    depth = _depth(root, override)
    path, part = override.path[:depth], depth - 1
    help, fixes = similar_key(root, override), renamed_key(root, override)
    if not help and (meant := _completed(root, override.path)):
        written = [f"{'.'.join(one)}={override.value_text}" for one in meant]
        help = "write " + " or ".join(written)
    help = help or _place(root, override, path)
    message = f"`{override.target}` is not in the recipe"
    return Diagnostic("MC203", message, override.part_span(part), help=help, fixes=fixes)


def with_meant(root: Node, override: Override) -> Node:
    """Returns the tree with the value of an unknown key where it was probably meant, if a value is missing
    there, so that one mistake does not lead to further reports. The tree is unchanged for other keys."""
    if not can_hold(root, override.path):
        return root
    part = _depth(root, override) - 1
    near = nearest_key(override.path[part], _siblings(root, override))
    meant = (*override.path[:part], near, *override.path[part + 1 :])
    old = root.at(meant) if near else None
    if old is not None and old.value == MISSING:
        return yaml_tree.put(root, meant, override.node())
    is_variable = override.path[0] == "vars" and part == 1
    return yaml_tree.put(root, override.path, override.node()) if is_variable else root


def _place(root: Node, override: Override, path: KeyPath) -> str:
    """Returns help with the place of a key that the mapping at the path before it does not have."""
    section = section_at(path[:-1], root)
    if section is None:
        return f"to add it, write +{override.text.strip()}"
    location = location_of(path[-1], section, path[:-1], override.node(), root)
    if location and location.path and len(path) == len(override.path):
        return f"write {'.'.join(location.path)}={override.value_text}"
    if location and location.help:
        return location.help
    if section is RECIPE:
        return f"values of your own go under `vars`: +vars.{override.text.strip()}"
    return f"its keys are {listed(section.keys)}"


def _completed(root: Node, path: KeyPath) -> list[KeyPath]:
    """Returns the key paths that end with a path: `components.actor.args.lr` for `actor.args.lr`. Empty if
    there are too many."""
    found = {
        (*before[: len(before) - len(path)], *path)
        for before, _ in leaves(root)
        if before[-len(path) :] == path
    }
    found |= {(top, *path) for top in NAMED if len(path) > 1 and is_key((top, *path), root)}
    return sorted(found) if len(found) <= MAX_MEANT else []


def _depth(root: Node, override: Override) -> int:
    """Returns the number of parts of the key up to the first that neither exists nor is a key of recipes."""
    path = override.path
    absent = [length for length in range(1, len(path) + 1) if root.at(path[:length]) is None]
    return next((length for length in absent if not is_key(path[:length], root)), absent[-1])


def _siblings(root: Node, override: Override) -> list[str]:
    """Returns the keys that could have been meant by the first part that does not exist. These include
    variables to which the recipe refers."""
    path, part = override.path, _depth(root, override) - 1
    parent = root.at(path[:part])
    existing = list(parent.value) if parent is not None and parent.is_mapping else []
    keys = dict.fromkeys((*existing, *keys_below(path[:part], root)))
    return [key for key in keys if key != path[part]]


def similar_key(root: Node, override: Override) -> str:
    """Returns `did you mean ...?` with the key path that was probably meant; empty if no key is similar."""
    path, part = override.path, _depth(root, override) - 1
    meant = nearest_key(path[part], _siblings(root, override))
    return f"did you mean `{'.'.join((*path[:part], meant, *path[part + 1 :]))}`?" if meant else ""


def renamed_key(root: Node, override: Override) -> tuple[Fix, ...]:
    """Returns the edit of a misspelt key; empty if several keys may be meant."""
    part = _depth(root, override) - 1
    return renamed(override.part_span(part), override.path[part], _siblings(root, override))
