"""Separates keys and values between which a space, a `:` or a `,` is missing.

YAML reads `{frozen true}` and `{balance:tokens}` as keys without values, and `every:100` below `checkpoint:`
as text. Each mistake is reported and corrected as the report proposes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.misplaced import invisible_character

JOINED = re.compile(r"([A-Za-z_][\w.@/-]*)(\s*=\s*|:\s*|\s+)([^\s=:].*)")
"""A key, the text between key and value, and a value."""
PLAIN_VALUE = re.compile(r"[\w./$+-]([\w./${}+-]|:(?=\w))*")
"""A value that needs no quotes."""
BRACED = re.compile(r"([A-Za-z_][\w.@/-]*):([{\[].*)")
"""A key that is joined with the beginning of a mapping or a list in brackets."""
ITEMS = re.compile(r"-\w\S*( - \S+)*")
"""Items of a list on one line, the first without a space after its `-`."""


@dataclass
class Spacing:
    """Corrects missing separators in one recipe, and reports them in `found`."""

    scalar: Callable[[str], Any]
    """Parses the text of a scalar."""
    found: list[Diagnostic] = field(default_factory=list)

    def separate(self, node: Node) -> Node:
        """Returns the tree with all keys separated from their values."""
        if node.is_list:
            return replace(node, value=[self.separate(item) for item in node.value])
        if not node.is_mapping:
            return node
        items = dict[str, Node]()
        for key, item in node.items():
            name, value = self.pair(key, item) or self.braced(key, item) or (key, item)
            items[name] = self.separate(value)
        return replace(node, value=items)

    def pair(self, key: str, item: Node) -> tuple[str, Node] | None:
        """Returns the key and the value that are joined in a key without a value, and reports it; None if
        nothing is joined."""
        if item.key is None or item.value is not None or item.written:
            return None
        has_colon = item.span.column > item.key.column + item.key.width
        parts = None if has_colon else JOINED.fullmatch(key)
        if parts is None:
            return None
        self.report("MC101", parts, item.key)
        return parts[1], self.node(parts, item.key)

    def braced(self, key: str, item: Node) -> tuple[str, Node] | None:
        """Returns the key that is joined with the beginning of a value in brackets, without this value, and
        reports it; None if nothing is joined."""
        parts = BRACED.fullmatch(key)
        if (
            parts is None
            or item.key is None
            or not isinstance(item.value, str)
            or item.value[-1:] not in "}]"
        ):
            return None
        help = f"write `{parts[1]}: {parts[2][0]}...`, with a space"
        self.found.append(Diagnostic("MC101", "a space is missing after the `:`", item.key, (), help))
        empty: dict[str, Node] | list[Node] = {} if parts[2][0] == "{" else []
        return parts[1], replace(item, value=empty, written="")

    def mapping(self, node: Node) -> Node | None:
        """Returns the mapping that a text was meant to be, and reports it; None if it does not look like a
        mapping."""
        parts = JOINED.fullmatch(node.value) if isinstance(node.value, str) else None
        if parts is None or not re.fullmatch(r"[=:\s]+", parts[2]):
            return None
        is_own_line = node.key is None or node.key.line != node.span.line  # `a: b: c` would not be YAML
        self.report("MC102", parts, node.span, is_fixable=is_own_line)
        return replace(node, value={parts[1]: self.node(parts, node.span)})

    def items(self, node: Node) -> Node | None:
        """Returns the list that a text was meant to be, and reports it; None if it does not look like a
        list."""
        if not isinstance(node.value, str) or not ITEMS.fullmatch(node.value):
            return None
        texts = [text.removeprefix("-") for text in node.value.split(" - ")]
        message, help = "a space is missing after the `-` of a list", "write `- `, with a space"
        fix = Fix(replace(node.span, width=1 + len(texts[0])), f"-{texts[0]}", f"- {texts[0]}")
        self.found.append(Diagnostic("MC102", message, node.span, (), help, fixes=(fix,)))
        return replace(node, value=[Node(text, node.span, written=text) for text in texts])

    def report(self, code: str, parts: re.Match[str], span: Span, is_fixable: bool = True) -> None:
        key, sign, value = parts.groups()
        written = f"{key}: {value}"
        what = "a space is missing after the `:`" if sign == ":" else f"a `:` is missing after `{key}`"
        help = invisible_character(parts[0]) or f"write `{key}: ...`"
        is_safe = is_fixable and span.width == len(parts[0]) and PLAIN_VALUE.fullmatch(value) is not None
        fixes = (Fix(span, parts[0], written),) if is_safe else ()
        self.found.append(Diagnostic(code, what, span, (), help, fixes=fixes))

    def node(self, parts: re.Match[str], span: Span) -> Node:
        start = parts.start(3) if span.width == len(parts[0]) else 0
        of_value = replace(span, column=span.column + start, width=max(1, span.width - start))
        of_key = replace(span, width=min(span.width, len(parts[1])))
        return Node(self.scalar(parts[3]), of_value, of_key, written=parts[3])
