"""Resolves interpolations: `${...}` stands for another value of the recipe or for the environment.

    ${vars.seq_len}   ${.sibling}   ${..uncle}      another value of the recipe
    ${oc.env:NAME}    ${oc.env:NAME,default}        the environment
    ${oc.select:a.b,default}   ${oc.decode:text}    and no other resolver: a resolver is code

In `args` and `env`, `${oc.env:X}` is kept as written: the worker resolves it, so no secret is in a plan.
References inside it are resolved here. `\\${` is a plain `${`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix
from meshctl.recipe.compose.references import (
    InvalidInterpolation,
    references,
    split,
    split_arguments,
    target_of,
)
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path, leaves
from meshctl.recipe.fixes import meant
from meshctl.recipe.suggestions import nearest_key
from meshctl.text.english import did_you_mean

RESOLVERS = ("oc.env", "oc.select", "oc.decode")
KEPT = {("components", "args"), ("groups", "env"), ("groups", "args")}
"""(mapping, key of its items) below which the environment is left to the worker."""
MAX_READS = 50_000
"""Maximum number of values that are read to resolve a recipe."""
MAX_CHAIN = 64
"""Maximum number of references that lead to one another."""


class ReportedElsewhere(InvalidInterpolation):
    """The reference leads to a value that is missing or wrong, which is reported where it is written."""

    def __init__(self) -> None:
        super().__init__("", "")


class TooMuch(InvalidInterpolation):
    """A limit of the evaluation is exceeded; it is reported once, at the first value that exceeds it."""

    def __init__(self, message: str) -> None:
        super().__init__("MC218", message)


def resolve(
    root: Node, environ: Mapping[str, str] = os.environ, decode: Callable[[str], Any] = str
) -> tuple[Node, list[Diagnostic]]:
    """Returns the tree without interpolations, except those of the environment in `args` and `env`, and what
    is wrong with them. `decode` reads a YAML scalar."""
    resolver = _Resolver(_Evaluator(root, environ, decode))
    return resolver.resolve(root, ()), resolver.found


@dataclass
class _Resolver:
    """Resolves every value of a tree, and reports each mistake once: where it is written, not wherever
    something refers to it."""

    evaluator: _Evaluator
    found: list[Diagnostic] = field(default_factory=list)
    circles: set[frozenset[Path]] = field(default_factory=set)
    """Those that have been reported."""
    is_limit_reported: bool = False

    def resolve(self, node: Node, path: Path) -> Node:
        """Returns the node resolved; the same object if nothing in it changes."""
        if isinstance(node.value, dict):
            items = {key: self.resolve(item, (*path, key)) for key, item in node.value.items()}
            is_same = all(map(operator.is_, items.values(), node.value.values()))
            return node if is_same else replace(node, value=items)
        if isinstance(node.value, list):
            values = [self.resolve(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return node if all(map(operator.is_, values, node.value)) else replace(node, value=values)
        if not _is_interpolated(node):
            return node
        try:
            value = self.evaluator.read(node, path, _is_kept(path))
        except InvalidInterpolation as wrong:
            self.found += self.diagnostics(wrong, node, path)
            value = replace(node, value=BROKEN)
        target = value.span if value.span != node.span else None
        return replace(value, span=node.span, key=node.key, target=target)

    def diagnostics(self, wrong: InvalidInterpolation, leaf: Node, path: Path) -> Iterator[Diagnostic]:
        root = self.evaluator.root
        if isinstance(wrong, ReportedElsewhere) or (isinstance(wrong, TooMuch) and self.is_limit_reported):
            return
        if isinstance(wrong, TooMuch):
            self.is_limit_reported = True
            yield replace(wrong.diagnostic, primary=leaf.span)
        elif wrong.circle:
            yield from self.circle(wrong, leaf, path)
        elif wrong.path in (None, path):
            yield replace(wrong.diagnostic, primary=leaf.span, fixes=_renamed(root, leaf, path))
        elif wrong.path and _is_kept(wrong.path) and wrong.diagnostic.code == "MC215":
            written = root.at(wrong.path)
            assert written is not None
            words = f"`{'.'.join(wrong.path)}` is left to the workers, but this must be known now"
            yield replace(wrong.diagnostic, primary=leaf.span, seconds=(written.span.with_word(words),))

    def circle(self, wrong: InvalidInterpolation, leaf: Node, path: Path) -> Iterator[Diagnostic]:
        """Reports a circle at the first of its values; the others are the second spans."""
        here = next((index for index, one in enumerate(wrong.circle) if path[: len(one)] == one), None)
        if here is None or frozenset(wrong.circle) in self.circles:
            return
        self.circles.add(frozenset(wrong.circle))
        circle = [*wrong.circle[here:], *wrong.circle[:here]]
        names = [".".join(one) for one in (*circle, circle[0])]
        seconds = []
        for one, following in zip(circle[1:], names[2:], strict=True):
            if node := self.evaluator.root.at(one):
                seconds.append(node.span.with_word(f"which refers to `{following}`"))
        message = f"this refers to itself: {' -> '.join(names)}"
        yield Diagnostic("MC213", message, leaf.span, tuple(seconds))


def _is_interpolated(node: Node) -> bool:
    return isinstance(node.value, str) and "${" in node.value


def _is_kept(path: Path) -> bool:
    """Returns whether the environment of a value is left to the worker, or for `vars` to the values that
    refer to it."""
    return path[:1] == ("vars",) or (len(path) > 2 and (path[0], path[2]) in KEPT)


def _lost(root: Node, target: Path) -> tuple[int, list[str]]:
    """Returns the index of the first key of `target` that does not exist, and the keys that do in its
    place."""
    depth = next(length for length in range(len(target)) if root.at(target[: length + 1]) is None)
    parent = root.at(target[:depth])
    return depth, [key for key, _ in parent.items()] if parent else []


def _renamed(root: Node, leaf: Node, path: Path) -> tuple[Fix, ...]:
    """Returns the edit of the one reference that leads nowhere to the key that was meant."""
    broken = [
        (text, target) for text, target in references(leaf.value, path) if target and not root.at(target)
    ]
    if len(broken) != 1:
        return ()
    ((written, target),) = broken
    depth, keys = _lost(root, target)
    key = target[depth]
    right = meant(key, keys)
    if not right or written.count(key) != 1 or leaf.written.count(written) != 1:
        return ()
    text = leaf.written.replace(written, written.replace(key, right))
    return (Fix(leaf.span, leaf.written, text),)


@dataclass
class _Evaluator:
    """Evaluates single values of a tree. Its methods raise `InvalidInterpolation`."""

    root: Node
    environ: Mapping[str, str]
    decode: Callable[[str], Any]
    open: list[Path] = field(default_factory=list)
    """The references that are being followed."""
    reads: int = 0

    def read(self, node: Node, path: Path, keep: bool) -> Node:
        """Returns the node with every interpolation in it evaluated; `keep` leaves the environment as it
        is."""
        self.reads += 1
        if self.reads > MAX_READS:
            raise TooMuch("the interpolations unfold to more than a recipe can need")
        if isinstance(node.value, dict):
            items = {key: self.read(item, (*path, key), keep) for key, item in node.value.items()}
            return replace(node, value=items)
        if isinstance(node.value, list):
            values = [self.read(item, (*path, str(index)), keep) for index, item in enumerate(node.value)]
            return replace(node, value=values)
        if node.value is BROKEN:
            raise ReportedElsewhere
        if not _is_interpolated(node):
            return node
        try:
            return self.text(node, path, keep)
        except InvalidInterpolation as wrong:
            wrong.path = path if wrong.path is None else wrong.path
            raise

    def text(self, node: Node, path: Path, keep: bool) -> Node:
        parts, values = list(split(node.value)), list[Node]()
        for text, is_inner in parts:
            values.append(self.inner(text, path, keep, node) if is_inner else replace(node, value=text))
        if len(values) == 1:
            return values[0]
        for value, (text, _) in zip(values, parts, strict=True):
            if value.is_mapping or value.is_list or value.value is None:
                what = "nothing" if value.value is None else "a mapping" if value.is_mapping else "a list"
                message = f"`${{{text}}}` is {what}, which cannot be part of a text"
                raise InvalidInterpolation("MC218", message)
        joined = "".join(str(value.value) for value in values)
        from_environment = any(value.from_environment for value in values)
        return replace(node, value=joined, written=joined, from_environment=from_environment)

    def inner(self, text: str, path: Path, keep: bool, node: Node) -> Node:
        """Returns the value of what is between `${` and `}`."""
        if "${" in text:
            text = str(self.read(replace(node, value=text), path, keep).value)
        text = text.strip()
        name, colon, arguments = text.partition(":")
        if not colon:
            return self.reference(text, path, keep)
        if name not in RESOLVERS:
            raise InvalidInterpolation(
                "MC214", f"there is no resolver `{name}`", did_you_mean(name, RESOLVERS)
            )
        given = split_arguments(arguments)
        if name == "oc.decode":
            return self.decoded(given, arguments, node)
        if not given or not given[0] or len(given) > 2:
            count = len(given) if any(given) else "none"
            message = f"`{name}` takes a name and perhaps a default, here are {count}"
            key = "NAME" if name == "oc.env" else "KEY"
            help = f"write ${{{name}:{key}}}, or with a default: ${{{name}:NAME,VALUE}}"
            raise InvalidInterpolation("MC222", message, help)
        return (
            self.environment(given, keep, node) if name == "oc.env" else self.select(given, path, keep, node)
        )

    def decoded(self, given: list[str], arguments: str, node: Node) -> Node:
        if "${oc.env:" in arguments:
            message, help = (
                "`oc.decode` cannot read what only the worker knows",
                "say the value itself, or use it as text",
            )
            raise InvalidInterpolation("MC217", message, help)
        text = ",".join(given)
        return replace(node, value=self.decode(text), written=text)

    def environment(self, given: list[str], keep: bool, node: Node) -> Node:
        name, *default = given
        if keep:
            kept = f"${{oc.env:{','.join(given)}}}"
            return replace(node, value=kept, written=kept)
        if name in self.environ:
            return replace(node, value=self.environ[name], written="", from_environment=True)
        if not default:
            help = f"set it, or give a default: ${{oc.env:{name},VALUE}}"
            raise InvalidInterpolation("MC215", f"the environment has no `{name}`", help)
        value = None if default[0] == "null" else default[0]
        return replace(node, value=value, written=default[0], from_environment=True)

    def select(self, given: list[str], path: Path, keep: bool, node: Node) -> Node:
        name, *default = given
        try:
            return self.reference(name, path, keep)
        except InvalidInterpolation as wrong:
            if wrong.diagnostic.code != "MC212" or wrong.path is not None or not default:
                raise
            return replace(node, value=self.decode(default[0]), written=default[0])

    def reference(self, text: str, path: Path, keep: bool) -> Node:
        target = target_of(text, path)
        if target in self.open:
            circle = tuple(self.open[self.open.index(target) :])
            raise InvalidInterpolation("MC213", "this refers to itself", circle=circle)
        node = self.root.at(target)
        if node is None and text in RESOLVERS:
            raise InvalidInterpolation("MC222", f"`{text}` takes a name", f"write ${{{text}:NAME}}")
        name = ".".join(target)
        if node is None:
            help = self.suggestion(target, path)
            raise InvalidInterpolation("MC212", f"there is no `{name}` in the recipe", help, missing=True)
        if node.value == MISSING:
            raise ReportedElsewhere
        if target == path[: len(target)]:
            raise InvalidInterpolation("MC213", f"this refers to `{name}`, which it is part of")
        if len(self.open) == MAX_CHAIN:
            raise TooMuch(f"more than {MAX_CHAIN} references lead to one another")
        self.open.append(target)
        try:
            return self.read(node, target, keep)
        finally:
            self.open.pop()

    def suggestion(self, target: Path, path: Path) -> str:
        """Returns the help for a reference to nothing."""
        depth, keys = _lost(self.root, target)
        if not keys:
            return ""
        near = nearest_key(target[depth], keys)
        right = (*target[:depth], near, *target[depth + 1 :]) if near else self.elsewhere(target[-1], path)
        return f"did you mean `${{{'.'.join(right)}}}`?" if right else ""

    def elsewhere(self, key: str, here: Path) -> Path:
        """Returns the path of the only other value of this name, wherever it is."""
        found = [path for path, _ in leaves(self.root) if path[-1:] == (key,) and path != here]
        return found[0] if len(found) == 1 else ()
