"""Reads arguments that name data, a tokenizer, a template or an entry of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, plain
from meshctl.recipe.rules.facts import Facts


def named_by(facts: Facts, component: str, path: KeyPath) -> Node | None:
    """Returns the value of an argument if it is a name; None for an empty text and for other values, also
    those that are unknown before the launch."""
    node = facts.argument(component, path)
    return node if node is not None and isinstance(node.value, str) and node.value else None


def texts_listed_by(facts: Facts, component: str, path: KeyPath) -> list[str] | None:
    """Returns the texts in the list that an argument is; none if it is left out, and None if one of them is
    unknown before the launch."""
    if facts.node("components", component, *path) is None:
        return []
    node = facts.argument(component, path)
    if node is None or not node.is_list:
        return None
    is_known = not any(one.from_environment or one.is_interpolated for one in node.value)
    return [one for one in plain(node) if isinstance(one, str)] if is_known else None


def once(diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yields the first of the diagnostics with the same code and message, since several components may name
    the same thing."""
    seen: set[tuple[str, str]] = set()
    for one in diagnostics:
        if (one.code, one.message) not in seen:
            seen.add((one.code, one.message))
            yield one
