"""Applies overrides that set, add or delete a value to a composed tree.

An override that does not fit the tree is reported and ignored.
"""

from __future__ import annotations

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose import yaml_tree
from meshctl.recipe.compose.overrides import Override, is_layout
from meshctl.recipe.compose.unknown_keys import renamed_key, similar_key, unknown
from meshctl.recipe.compose.yaml_tree import MISSING, Node
from meshctl.recipe.key_paths import is_key


def apply(root: Node, override: Override) -> Node | Diagnostic:
    """Returns the tree with one value set, added or deleted, or a diagnostic if the override does not apply
    to the tree."""
    if beyond := _unreachable(root, override):
        return beyond
    old, parsed = root.at(override.path), override.parsed
    if override.is_deletion:
        return _delete(root, override, old)
    new = override.node()
    if (
        parsed.is_add()
        and old is not None
        and old.value not in (None, MISSING)
        and not (new.is_mapping or new.is_list)
    ):
        return _exists_already(override, old)
    needs_key = not parsed.is_add() and not parsed.is_force_add()
    if needs_key and old is None and not is_key(override.path, root):
        return unknown(root, override)
    if old is not None and new.is_mapping and not is_layout(override.group):
        new = yaml_tree.merge(old, new)
    return yaml_tree.put(root, override.path, new)


def _delete(root: Node, override: Override, old: Node | None) -> Node | Diagnostic:
    expected = override.parsed.value()
    if old is None:
        message = f"`{override.target}` cannot be deleted: it is not in the recipe"
        help, fixes = similar_key(root, override), renamed_key(root, override)
        return Diagnostic("MC209", message, override.key_span, help=help, fixes=fixes)
    if expected is not None and expected != yaml_tree.plain(old):
        message = f"`{override.target}` cannot be deleted: its value is not {override.value_text}"
        return Diagnostic("MC209", message, override.value_span, (old.span.with_word("its value"),))
    return yaml_tree.without(root, override.path)


def _exists_already(override: Override, old: Node) -> Diagnostic:
    help = f"`{override.target}={override.value_text}` replaces it"
    plus = Span(override.file, 1, override.text.index("+") + 1)
    message, here = f"`{override.target}` already exists", old.span.with_word("here")
    return Diagnostic("MC204", message, override.key_span, (here,), help, fixes=(Fix(plus, "+", ""),))


def _unreachable(root: Node, override: Override) -> Diagnostic | None:
    """Returns a diagnostic if a value on the path to the key is not a mapping."""
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
