"""Finds the origin of each value of a composed recipe: its place, and the values that it replaced.

    for origin in origins(loaded):
        origin.path, origin.value          ("run", "steps"), 7
        origin.kind, origin.span           "override", Span("override 1", 1, 11)
        origin.replaced                    (Replaced(100, Span("recipe.yaml", 29, 15)),)

Origins contain no secrets and no values of environment variables: these are redacted here.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.compose import yaml_scalars
from meshctl.recipe.compose.interpolation import references
from meshctl.recipe.compose.yaml_tree import BROKEN, KeyPath, Node, is_override, leaves, plain, replaced
from meshctl.recipe.load import Loaded
from meshctl.recipe.secrets import Secrets, shown
from meshctl.text.redaction import HIDDEN

Kind = Literal["recipe", "file", "override", "inferred"]
UNREAD = "<unreadable>"
PLAIN = re.compile(r"(?:[\w./~$@+= -]|:(?! )|\$\{[^{}\"'#]*\}|<redacted>)+")
"""A text that needs no quotes in YAML."""


@dataclass(frozen=True)
class Replaced:
    """A value that was replaced."""

    value: Any
    span: Span


@dataclass(frozen=True)
class Reference:
    """One `${...}` in a value."""

    text: str
    """Its text in the file."""
    path: KeyPath | None
    """The key path to which it refers; None for the environment."""
    span: Span | None
    """The place of the value to which it refers."""


@dataclass(frozen=True)
class Origin:
    path: KeyPath
    value: Any
    """The value as plain data, with secrets redacted."""
    kind: Kind
    """`recipe` is the recipe's own file, `file` a config group or an included recipe."""
    span: Span | None = None
    """None for a value that is in no file."""
    note: str = ""
    """The reason for a value that is in no file."""
    resolved: tuple[Any, ...] = ()
    """The value after references are resolved, as a tuple of one item; empty if it is the same."""
    references: tuple[Reference, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    """The values that it replaced, the latest first."""


def origins(loaded: Loaded) -> tuple[Origin, ...]:
    """Returns the origins of all scalars and of all empty lists and mappings, in the order of the recipe."""
    if loaded.tree is None:
        return ()
    return tuple(_written(loaded, path, leaf) for path, leaf in leaves(loaded.tree) if path)


def line_of(value: Any) -> str:
    """Returns a value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {line_of(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(line_of, value))}]"
    if isinstance(value, str):
        is_bare = PLAIN.fullmatch(value) is not None and value == value.strip()
        is_plain = is_bare and isinstance(yaml_scalars.scalar(value), str)
        return value if is_plain or value in (HIDDEN, UNREAD) else json.dumps(value, ensure_ascii=False)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# Values in files


def _written(loaded: Loaded, path: KeyPath, leaf: Node) -> Origin:
    tree, secrets = loaded.tree, loaded.secrets
    assert tree is not None
    if leaf.inferred_from:
        return Origin(path, _plain(leaf, path, secrets), "inferred", None, leaf.inferred_from)
    links: list[Reference] = []
    for text, target in references(leaf.value, path) if leaf.is_interpolated else ():
        node = tree.at(target) if target is not None else None
        written = str(_plain(Node(text, leaf.span), path, secrets))  # the default of `oc.env` may be secret
        span = node.span if node is not None and not node.inferred_from else None
        links.append(Reference(written, target, span))
    node, resolved = loaded.facts.node(*path) if loaded.facts else None, tuple[Any, ...]()
    is_known = node is not None and node.value is not BROKEN and isinstance(leaf.value, str)
    if node is not None and is_known and node.value != leaf.value:
        is_secret = path in secrets.paths or _leads_to_secret(loaded, path, leaf)
        resolved = (HIDDEN if is_secret else _plain(node, path, secrets),)
    older, last = list[Replaced](), leaf.span
    for node in replaced(tree, path):
        if node.span != last:
            older.append(Replaced(_plain(node, path, secrets), node.span))
        last = node.span
    return Origin(
        path=path,
        value=_plain(leaf, path, secrets),
        kind=kind_of(leaf.span, tree),
        span=leaf.span,
        resolved=resolved,
        references=tuple(links),
        replaced=tuple(older),
    )


def kind_of(span: Span, tree: Node) -> Kind:
    if is_override(span.file):
        return "override"
    return "recipe" if span.file == tree.span.file else "file"


def _plain(node: Node, path: KeyPath, secrets: Secrets) -> Any:
    return UNREAD if node.value is BROKEN else plain(shown(node, secrets, path))


def _leads_to_secret(loaded: Loaded, path: KeyPath, leaf: Node) -> bool:
    """Returns whether a reference leads to a secret, directly or through other references."""
    open, seen = [(path, leaf)], set[KeyPath]()
    while open and loaded.tree is not None:
        here, node = open.pop()
        if here in seen:
            continue
        seen.add(here)
        for below, inner in leaves(node, here):
            if below in loaded.secrets.paths:
                return True
            for _, target in references(inner.value, below) if inner.is_interpolated else ():
                if target is not None and (found := loaded.tree.at(target)) is not None:
                    open.append((target, found))
    return False
