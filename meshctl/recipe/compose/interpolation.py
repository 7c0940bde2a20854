"""`${...}`: what a recipe says once and uses elsewhere.

    ${vars.seq_len}   ${.sibling}   ${..uncle}      another value of the recipe
    ${oc.env:NAME}    ${oc.env:NAME,default}        the environment
    ${oc.select:a.b,default}   ${oc.decode:text}    and no other resolver: a resolver is code

In `args` and `env` an `${oc.env:X}` stays as written: the worker resolves it, so no secret is in a plan. References inside it are
resolved here. `\\${` is a plain `${`.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path, leaves
from meshctl.recipe.fixes import meant
from meshctl.recipe.suggestions import nearest_key
from meshctl.text.english import did_you_mean

RESOLVERS = ("oc.env", "oc.select", "oc.decode")
KEPT = {("components", "args"), ("groups", "env"), ("groups", "args")}
"""(mapping, key of its items) below which the environment is left to the worker."""
MAX_READS = 50_000


class Wrong(Exception):
    """Ends the reading of one value; the border below makes it a diagnostic."""

    def __init__(self, code: str, message: str, help: str = "", circle: tuple[Path, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, help=help)
        self.circle = circle
        """The references that lead back to the first of them."""
        self.path: Path | None = None
        """Of the value in whose own text it is."""


class Silent(Wrong):
    """It leads to a value that is still to be given, or wrong: that is said there."""

    def __init__(self) -> None:
        super().__init__("", "")


def resolve(
    root: Node, environ: Mapping[str, str] = os.environ, decode: Callable[[str], Any] = str
) -> tuple[Node, list[Diagnostic]]:
    """The tree without interpolations, but for those of the environment in `args` and `env`; `decode` reads a
    YAML scalar."""
    whole = _Whole(_Reader(root, environ, decode))
    return whole.read(root, ()), whole.found


@dataclass
class _Whole:
    """Reads every value of a tree, and says each mistake once: where it is written, not wherever something
    refers to it."""

    reader: _Reader
    found: list[Diagnostic] = field(default_factory=list)
    circles: set[frozenset[Path]] = field(default_factory=set)

    def read(self, node: Node, path: Path) -> Node:
        if isinstance(node.value, dict):
            items = {key: self.read(item, (*path, key)) for key, item in node.value.items()}
            return (
                node
                if all(items[key] is item for key, item in node.value.items())
                else replace(node, value=items)
            )
        if isinstance(node.value, list):
            values = [self.read(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return node if all(map(operator.is_, values, node.value)) else replace(node, value=values)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            value = self.reader.read(node, path, _is_kept(path))
        except Wrong as wrong:
            self.found += self.said(wrong, node, path)
            value = replace(node, value=BROKEN)
        target = value.span if value.span != node.span else None
        return replace(value, span=node.span, key=node.key, target=target)

    def said(self, wrong: Wrong, leaf: Node, path: Path) -> Iterator[Diagnostic]:
        root = self.reader.root
        if isinstance(wrong, Silent):
            return
        if wrong.circle:
            yield from self.circle(wrong, leaf, path)
        elif wrong.path in (None, path):
            yield replace(wrong.diagnostic, primary=leaf.span, fixes=_renamed(root, leaf, path))
        elif (
            wrong.path
            and _is_kept(wrong.path)
            and wrong.diagnostic.code == "MC215"
            and (written := root.at(wrong.path))
        ):
            says = written.span.with_word(
                f"`{'.'.join(wrong.path)}` is left to the workers, but this must be known now"
            )
            yield replace(wrong.diagnostic, primary=leaf.span, seconds=(says,))

    def circle(self, wrong: Wrong, leaf: Node, path: Path) -> Iterator[Diagnostic]:
        """At the first of its values; the others are its second places."""
        here = next((index for index, one in enumerate(wrong.circle) if path[: len(one)] == one), None)
        if here is None or frozenset(wrong.circle) in self.circles:
            return
        self.circles.add(frozenset(wrong.circle))
        circle = [*wrong.circle[here:], *wrong.circle[:here]]
        names = [".".join(one) for one in (*circle, circle[0])]
        spans = [
            (node.span, names[index + 1])
            for index, one in enumerate(circle)
            if index and (node := self.reader.root.at(one))
        ]
        seconds = tuple(span.with_word(f"which refers to `{name}`") for span, name in spans)
        yield Diagnostic("MC213", f"this refers to itself: {' -> '.join(names)}", leaf.span, seconds)


def _is_kept(path: Path) -> bool:
    """Whether its environment is left to whoever needs it: to the worker, or of `vars` to the values that
    refer to it."""
    return path[:1] == ("vars",) or (len(path) > 2 and (path[0], path[2]) in KEPT)


def _renamed(root: Node, leaf: Node, path: Path) -> tuple[Fix, ...]:
    """The one reference that leads nowhere, with the key that was meant."""
    broken = [
        (written, target)
        for written, target in references(leaf.value, path)
        if target and root.at(target) is None
    ]
    if len(broken) != 1:
        return ()
    (written, target), *_ = broken
    depth = next(length for length in range(len(target)) if root.at(target[: length + 1]) is None)
    parent, key = root.at(target[:depth]), target[depth]
    right = meant(key, parent.value) if parent is not None and parent.is_mapping else ""
    if not right or written.count(key) != 1 or leaf.written.count(written) != 1:
        return ()
    return (Fix(leaf.span, leaf.written, leaf.written.replace(written, written.replace(key, right))),)


def references(text: str, path: Path) -> Iterator[tuple[str, Path | None]]:
    """What the value at `path` refers to, from left to right: (as written, the key path; none for the
    environment and what is wrong)."""
    try:
        inner = [piece for piece, is_inner in _pieces(text) if is_inner]
    except Wrong:
        return
    for piece in inner:
        name, colon, arguments = piece.strip().partition(":")
        if "${" in piece:
            yield from references(piece, path)
            named = None
        elif not colon:
            named = _named(name, path)
        else:
            first = next(iter(_arguments(arguments)), "")
            named = _named(first, path) if name == "oc.select" else None
        yield f"${{{piece}}}", named


def _named(text: str, path: Path) -> Path | None:
    try:
        return _target(text, path)
    except Wrong:
        return None


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
            return replace(
                node, value={key: self.read(item, (*path, key), keep) for key, item in node.value.items()}
            )
        if isinstance(node.value, list):
            return replace(
                node,
                value=[self.read(item, (*path, str(index)), keep) for index, item in enumerate(node.value)],
            )
        if node.value is BROKEN:
            raise Silent()
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            return self.text(node, path, keep)
        except Wrong as wrong:
            wrong.path = path if wrong.path is None else wrong.path
            raise

    def text(self, node: Node, path: Path, keep: bool) -> Node:
        pieces = list(_pieces(node.value))
        values = [
            self.inner(text, path, keep, node) if inner else replace(node, value=text)
            for text, inner in pieces
        ]
        if len(values) == 1:
            return values[0]
        for value, (text, _) in zip(values, pieces, strict=True):
            if isinstance(value.value, (dict, list)) or value.value is None:
                what = "nothing" if value.value is None else "a mapping" if value.is_mapping else "a list"
                raise Wrong("MC218", f"`${{{text}}}` is {what}, which cannot be part of a text")
        text = "".join(str(value.value) for value in values)
        return replace(
            node, value=text, written=text, from_environment=any(value.from_environment for value in values)
        )

    def inner(self, text: str, path: Path, keep: bool, node: Node) -> Node:
        """The value of what stands between `${` and `}`."""
        text = (
            str(self.read(replace(node, value=text), path, keep).value).strip()
            if "${" in text
            else text.strip()
        )
        name, colon, arguments = text.partition(":")
        if not colon:
            return self.reference(text, path, keep)
        if name not in RESOLVERS:
            raise Wrong("MC214", f"there is no resolver `{name}`", did_you_mean(name, RESOLVERS))
        given = _arguments(arguments)
        if name != "oc.decode" and (not given or not given[0] or len(given) > 2):
            help = f"write ${{{name}:{'NAME' if name == 'oc.env' else 'KEY'}}}, or with a default: ${{{name}:NAME,VALUE}}"
            raise Wrong(
                "MC222",
                f"`{name}` takes a name and perhaps a default, here are {len(given) if any(given) else 'none'}",
                help,
            )
        if name == "oc.env":
            return self.environment(given, keep, node)
        if name == "oc.decode":
            if "${oc.env:" in arguments:
                raise Wrong(
                    "MC217",
                    "`oc.decode` cannot read what only the worker knows",
                    "say the value itself, or use it as text",
                )
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
            raise Wrong(
                "MC215",
                f"the environment has no `{name}`",
                f"set it, or give a default: ${{oc.env:{name},VALUE}}",
            )
        return replace(
            node, value=None if given[1] == "null" else given[1], written=given[1], from_environment=True
        )

    def select(self, given: list[str], path: Path, keep: bool, node: Node) -> Node:
        try:
            return self.reference(given[0] if given else "", path, keep)
        except Wrong as wrong:
            if wrong.diagnostic.code != "MC212" or wrong.path is not None or len(given) < 2:
                raise
            return replace(node, value=self.decode(given[1]), written=given[1])

    def reference(self, text: str, path: Path, keep: bool) -> Node:
        target = _target(text, path)
        if target in self.open:
            raise Wrong("MC213", "this refers to itself", circle=tuple(self.open[self.open.index(target) :]))
        node = self.root.at(target)
        if node is None and text in RESOLVERS:
            raise Wrong("MC222", f"`{text}` takes a name", f"write ${{{text}:NAME}}")
        if node is None:
            raise Wrong("MC212", f"there is no `{'.'.join(target)}` in the recipe", self.meant(target, path))
        if node.value == MISSING:
            raise Silent()
        if target == path[: len(target)]:
            raise Wrong("MC213", f"this refers to `{'.'.join(target)}`, which it is part of")
        self.open.append(target)
        try:
            return self.read(node, target, keep)
        finally:
            self.open.pop()

    def meant(self, target: Path, path: Path) -> str:
        for length in range(len(target)):
            parent = self.root.at(target[:length])
            if parent is not None and parent.is_mapping and parent.get(target[length]) is None:
                near = nearest_key(target[length], parent.value)
                if (
                    meant := (*target[:length], near, *target[length + 1 :])
                    if near
                    else self.elsewhere(target[-1], path)
                ):
                    return f"did you mean `${{{'.'.join(meant)}}}`?"
                return ""
        return ""

    def elsewhere(self, key: str, here: Path) -> Path:
        """The only other value of that name, wherever it is."""
        found = [path for path, _ in leaves(self.root) if path[-1:] == (key,) and path != here]
        return found[0] if len(found) == 1 else ()


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
    given = [
        part.strip()
        for part in (parts[:-1] if parts and parts[-1] == "" and not text.rstrip().endswith(",") else parts)
    ]
    return [
        part[1:-1] if len(part) > 1 and part[0] in "'\"" and part[-1] == part[0] else part for part in given
    ]
