"""`${...}`: what a recipe says once and uses elsewhere.

    ${vars.seq_len}   ${.sibling}   ${..uncle}      another value of the recipe
    ${oc.env:NAME}    ${oc.env:NAME,default}        the environment
    ${oc.select:a.b,default}   ${oc.decode:text}    and no other resolver: a resolver is code

In `args` and `env` an `${oc.env:X}` stays as written: the worker resolves it, so no secret is in a plan. References inside it are
resolved here. `\\${` is a plain `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.nodes import BROKEN, MISSING, Node, Path, leaves, put
from meshctl.recipe.words import did_you_mean, nearest

RESOLVERS = ("oc.env", "oc.select", "oc.decode")
KEPT = {("components", "args"), ("groups", "env"), ("groups", "args")}
"""(mapping, key of its items) below which the environment is left to the worker."""
MAX_READS = 50_000


class Wrong(Exception):
    """Ends the reading of one value; the border below makes it a diagnostic."""

    def __init__(self, code: str, message: str, help: str = "") -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, help=help)


def resolve(root: Node, environ: Mapping[str, str] = os.environ, decode: Callable[[str], Any] = str) -> tuple[Node, list[Diagnostic]]:
    """The tree without interpolations, but for those of the environment in `args` and `env`; `decode` reads a YAML scalar."""
    reader, found = _Reader(root, environ, decode), []
    result = root
    for path, leaf in leaves(root):
        if not isinstance(leaf.value, str) or "${" not in leaf.value:
            continue
        try:
            value = reader.read(leaf, path, _is_kept(path))
        except Wrong as wrong:
            found.append(replace(wrong.diagnostic, primary=leaf.span))
            value = replace(leaf, value=BROKEN)
        result = put(result, path, replace(value, span=leaf.span, key=leaf.key))
    return result, found


def _is_kept(path: Path) -> bool:
    return len(path) > 2 and (path[0], path[2]) in KEPT


@dataclass
class _Reader:
    root: Node
    environ: Mapping[str, str]
    decode: Callable[[str], Any]
    open: list[Path] = field(default_factory=list)
    """The references that are being followed."""
    count: int = 0

    def read(self, node: Node, path: Path, keep: bool) -> Node:
        """The node with every interpolation in it read."""
        self.count += 1
        if self.count > MAX_READS:
            raise Wrong("MC218", "the interpolations unfold to more than a recipe can need")
        if isinstance(node.value, dict):
            return replace(node, value={key: self.read(item, (*path, key), keep) for key, item in node.value.items()})
        if isinstance(node.value, list):
            return replace(node, value=[self.read(item, (*path, str(index)), keep) for index, item in enumerate(node.value)])
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        pieces = list(_pieces(node.value))
        values = [self.inner(text, path, keep, node) if inner else replace(node, value=text) for text, inner in pieces]
        if len(values) == 1:
            return values[0]
        if any(isinstance(value.value, (dict, list)) for value in values):
            raise Wrong("MC218", "a mapping or a list cannot be part of a text")
        text = "".join(str(value.value) for value in values)
        return replace(node, value=text, written=text, from_environment=any(value.from_environment for value in values))

    def inner(self, text: str, path: Path, keep: bool, node: Node) -> Node:
        """The value of what stands between `${` and `}`."""
        text = str(self.read(replace(node, value=text), path, keep).value).strip() if "${" in text else text.strip()
        name, colon, arguments = text.partition(":")
        if not colon:
            return self.reference(text, path, keep)
        if name not in RESOLVERS:
            raise Wrong("MC214", f"there is no resolver `{name}`", did_you_mean(name, RESOLVERS))
        given = _arguments(arguments)
        if name == "oc.env":
            return self.environment(given, keep, node)
        if name == "oc.decode":
            if "${oc.env:" in arguments:
                raise Wrong("MC217", "`oc.decode` cannot read what only the worker knows", "say the value itself, or use it as text")
            return replace(node, value=self.decode(",".join(given)), written=",".join(given))
        return self.select(given, path, keep, node)

    def environment(self, given: list[str], keep: bool, node: Node) -> Node:
        name = given[0] if given else ""
        if keep:
            kept = f"${{oc.env:{','.join([name, *given[1:2]])}}}"
            return replace(node, value=kept, written=kept)
        if name in self.environ:
            return replace(node, value=self.environ[name], written="", from_environment=True)
        if len(given) < 2:
            raise Wrong("MC215", f"the environment has no `{name}`", f"set it, or give a default: ${{oc.env:{name},VALUE}}")
        return replace(node, value=None if given[1] == "null" else given[1], written=given[1], from_environment=True)

    def select(self, given: list[str], path: Path, keep: bool, node: Node) -> Node:
        try:
            return self.reference(given[0] if given else "", path, keep)
        except Wrong as wrong:
            if wrong.diagnostic.code != "MC212" or len(given) < 2:
                raise
            return replace(node, value=self.decode(given[1]), written=given[1])

    def reference(self, text: str, path: Path, keep: bool) -> Node:
        target = _target(text, path)
        if target in self.open:
            circle = " -> ".join(".".join(step) for step in (*self.open[self.open.index(target) :], target))
            raise Wrong("MC213", f"this refers to itself: {circle}")
        node = self.root.at(target)
        if node is None:
            raise Wrong("MC212", f"there is no `{'.'.join(target)}` in the recipe", self.meant(target))
        if node.value == MISSING:
            raise Wrong("MC212", f"`{'.'.join(target)}` has no value yet")
        if target == path[: len(target)]:
            raise Wrong("MC213", f"this refers to `{'.'.join(target)}`, which it is part of")
        self.open.append(target)
        try:
            return self.read(node, target, keep)
        finally:
            self.open.pop()

    def meant(self, target: Path) -> str:
        for length in range(len(target)):
            parent = self.root.at(target[:length])
            if parent is not None and parent.is_mapping and parent.get(target[length]) is None:
                near = nearest(target[length], parent.value)
                return f"did you mean `${{{'.'.join((*target[:length], near, *target[length + 1 :]))}}}`?" if near else ""
        return ""


def _target(text: str, path: Path) -> Path:
    """The key path that a reference names; leading dots climb from the value that refers."""
    dots = len(text) - len(text.lstrip("."))
    keys = tuple(key for key in re.split(r"\.|\[|\]\.?", text.lstrip(".")) if key)
    if dots >= len(path) + 1:
        raise Wrong("MC212", f"`${{{text}}}` climbs out of the recipe")
    if not keys:
        raise Wrong("MC212", f"`${{{text}}}` names nothing")
    return (*path[: len(path) - dots], *keys) if dots else keys


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it stood between `${` and `}`), from left to right."""
    start = position = 0
    plain = ""
    while position < len(text):
        if text.startswith("\\${", position):
            plain, position = plain + text[start:position] + "${", position + 3
            start = position
        elif text.startswith("${", position):
            if plain + text[start:position]:
                yield plain + text[start:position], False
            end = _close(text, position + 2)
            yield text[position + 2 : end], True
            plain, start, position = "", end + 1, end + 1
        else:
            position += 1
    if plain + text[start:]:
        yield plain + text[start:], False


def _close(text: str, position: int) -> int:
    """Where the brace that closes is."""
    depth = 1
    while position < len(text):
        depth += (text[position] == "{") - (text[position] == "}")
        if not depth:
            return position
        position += 1
    raise Wrong("MC212", "this `${` is not closed", "add the `}`, or write `\\${` for the plain characters")


def _arguments(text: str) -> list[str]:
    """Parted at commas outside quotes, without the quotes."""
    parts = re.findall(r"\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)\s*(?:,|$)", text)
    given = [part.strip() for part in (parts[:-1] if parts and parts[-1] == "" and not text.rstrip().endswith(",") else parts)]
    return [part[1:-1] if len(part) > 1 and part[0] in "'\"" and part[-1] == part[0] else part for part in given]
