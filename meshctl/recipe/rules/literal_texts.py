"""MC579: texts in `args` and `env` that look as if something in them were replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, leaves
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.scalars import CURLY_QUOTES, reference_hint

VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)(/.*)?")
"""A variable of a shell, such as `$DATA` or `$HOME/data`."""
HOME = re.compile("~(/|$)")
OPTION = re.compile(r"(--[a-zA-Z][\w.-]*) +(\S+)")
"""An option of a program with its value, such as `--port 8000`."""
PLACES = (("components", "args"), ("groups", "args"), ("groups", "env"))
"""(section, key) of the values that are passed on as they are written."""


def texts_are_literal(facts: Facts) -> Iterator[Diagnostic]:
    """No text that is passed on as it is written looks like a variable, a reference or a text in quotes."""
    reported = set()
    for path, node in _texts(facts):
        span = node.target or node.span
        if span in reported or node.from_environment or not isinstance(node.value, str):
            continue
        if found := _looks_replaced(facts, path, node):
            reported.add(span)
            yield Diagnostic("MC579", found[0], span, help=found[1], severity="warning")


def _texts(facts: Facts) -> Iterator[tuple[KeyPath, Node]]:
    """Yields the key path and node of each value that is passed on."""
    for section, key in PLACES:
        names = facts.recipe.components if section == "components" else facts.recipe.groups
        for name in names:
            place = (section, name, key)
            node = facts.node(*place)
            if node is not None and facts.is_valid(*place):
                yield from leaves(node, place)


def _looks_replaced(facts: Facts, path: KeyPath, node: Node) -> tuple[str, str] | None:
    """Returns (message, help) for a text that is probably not meant as it is written."""
    text = node.value
    if found := VARIABLE.fullmatch(text):
        right = f"${{oc.env:{found[1]}}}{found[2] or ''}"
        return f"`{text}` is passed on as it is: no shell replaces it", f'write "{right}"'
    if HOME.match(text):
        return f"`{text}` is passed on as it is: nothing replaces `~`", f'write "${{oc.env:HOME}}{text[1:]}"'
    reference = reference_hint(node).removeprefix("write ")
    keys = tuple(reference.strip("${}").split("."))
    if len(keys) > 1 and facts.tree.at(keys) is not None:
        return f"`{text}` is not an interpolation", f'write "{reference}"'
    if len(text) > 1 and text[0] in CURLY_QUOTES and text[-1] in CURLY_QUOTES:
        return "the typographic quotes are part of this text", "use straight quotes"
    if path[0] == "groups" and path[2] == "args" and (found := OPTION.fullmatch(text)):
        return f"`{text}` is one argument of the program", f"write two: {found[1]}, {found[2]}"
    return None


RULES = (texts_are_literal,)
