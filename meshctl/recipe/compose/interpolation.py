"""Resolves interpolations: `${...}` refers to another value of the recipe or to the environment.

    ${vars.seq_len}   ${.sibling}   ${..uncle}      another value of the recipe
    ${oc.env:NAME}    ${oc.env:NAME,default}        the environment
    ${oc.select:a.b,default}   ${oc.decode:text}    no other resolver is supported, because resolvers are code

In `args` and `env`, `${oc.env:X}` is kept as written. The worker resolves it, so that plans contain no
secrets. References inside it are resolved here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, KeyPath, Node, with_leaves
from meshctl.text.english import counted, did_you_mean, nearest

MAX_NESTING = 32
"""Maximum nesting depth of interpolations."""

MAX_REFERENCES = 1_000
"""Maximum number of interpolations in one text."""


class InvalidInterpolation(Exception):
    """Ends the evaluation of one value. `interpolation.resolve` converts it to a diagnostic."""

    def __init__(
        self,
        code: str,
        message: str,
        help: str = "",
        circle: tuple[KeyPath, ...] = (),
        path: KeyPath | None = None,
        *,
        missing: bool = False,
        is_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, help=help, missing=missing)
        self.circle = circle
        """A circle of references: each refers to the next, and the last to the first."""
        self.path = path
        """The path of the value whose text contains the invalid interpolation."""
        self.is_limit = is_limit
        """True if a limit was exceeded, which is reported only once."""


def references(text: str, path: KeyPath) -> Iterator[tuple[str, KeyPath | None]]:
    """Yields the references in the text of the value at `path`, from left to right, as (text, key path). The
    key path is None for the environment and for an invalid reference."""
    try:
        inner = [part for part, is_inner in split(text) if is_inner]
    except InvalidInterpolation:
        return
    for part in inner:
        name, colon, arguments = part.strip().partition(":")
        target = None
        if "${" in part:
            yield from references(part, path)
        elif not colon or name == "oc.select":
            with suppress(InvalidInterpolation):
                target = target_of(next(iter(split_arguments(arguments)), "") if colon else name, path)
        yield f"${{{part}}}", target


def target_of(text: str, path: KeyPath) -> KeyPath:
    """Returns the key path that a reference names. Leading dots are relative to the value at `path`."""
    dots = len(text) - len(text.lstrip("."))
    keys = tuple(key for key in re.split(r"\.|\[|\]\.?", text.lstrip(".")) if key)
    if dots >= len(path) + 1:
        raise InvalidInterpolation("MC212", f"`${{{text}}}` goes above the top of the recipe")
    if not keys:
        raise InvalidInterpolation("MC212", f"`${{{text}}}` is empty")
    return (*path[: len(path) - dots], *keys) if dots else keys


def split(text: str) -> Iterator[tuple[str, bool]]:
    """Yields (part, whether it is the inside of `${...}`) for the parts of a text, from left to right."""
    if text.count("${") > MAX_REFERENCES:
        raise InvalidInterpolation("MC218", f"one text has more than {MAX_REFERENCES:,} interpolations")
    start = position = 0
    plain = ""
    while position < len(text):
        if text.startswith("\\${", position):
            plain, position = plain + text[start:position] + "${", position + 3
            start = position
        elif text.startswith("${", position):
            if plain + text[start:position]:
                yield plain + text[start:position], False
            end = _closing_brace(text, position + 2)
            yield text[position + 2 : end], True
            plain, start, position = "", end + 1, end + 1
        else:
            position += 1
    if plain + text[start:]:
        yield plain + text[start:], False


def _closing_brace(text: str, position: int) -> int:
    depth = 1
    while position < len(text):
        depth += (text[position] == "{") - (text[position] == "}")
        if not depth:
            return position
        if depth > MAX_NESTING:
            raise InvalidInterpolation(
                "MC218", f"this interpolation is nested deeper than {MAX_NESTING} levels"
            )
        position += 1
    help = "add the `}`, or write `\\${` for the characters themselves"
    raise InvalidInterpolation("MC212", "this `${` is not closed", help)


def split_arguments(text: str) -> list[str]:
    """Splits at commas outside quotes, and removes the quotes."""
    parts = re.findall(r"\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)\s*(?:,|$)", text)
    if parts and parts[-1] == "" and not text.rstrip().endswith(","):
        parts.pop()
    texts = [part.strip() for part in parts]
    return [one[1:-1] if len(one) > 1 and one[0] in "'\"" and one[-1] == one[0] else one for one in texts]


# Values


RESOLVERS = ("oc.env", "oc.select", "oc.decode")
KEPT = {("components", "args"), ("groups", "env"), ("groups", "args")}
"""(mapping, key of its items) below which the worker resolves `oc.env`."""
MAX_READS = 50_000
"""Maximum number of values that are read while a recipe is resolved."""
MAX_CHAIN = 64
"""Maximum length of a chain of references."""


def resolve(
    root: Node,
    environ: Mapping[str, str] = os.environ,
    decode: Callable[[str], Any] = str,
    wrong: Collection[KeyPath] = (),
) -> tuple[Node, list[Diagnostic]]:
    """Returns the tree with interpolations resolved, except `oc.env` in `args` and `env`, and the diagnostics
    about wrong ones. `decode` parses a YAML scalar. A reference to a value of `wrong` or inside one is not
    reported, because its key is."""
    resolver = _Resolver(root, environ, decode, wrong)
    return with_leaves(root, (), resolver.resolved), resolver.found


@dataclass
class _Resolver:
    """Resolves the values of a tree. Each mistake is reported once, at the value that contains it, not at
    values that refer to it. The methods that evaluate raise `InvalidInterpolation`."""

    root: Node
    environ: Mapping[str, str]
    decode: Callable[[str], Any]
    wrong: Collection[KeyPath]
    found: list[Diagnostic] = field(default_factory=list)
    open: list[KeyPath] = field(default_factory=list)
    """The chain of references that is currently followed."""
    reads: int = 0
    circles: set[frozenset[KeyPath]] = field(default_factory=set)
    """The circles that have been reported. The empty set stands for an exceeded limit."""

    def resolved(self, leaf: Node, path: KeyPath) -> Node:
        """Returns a leaf with its value resolved, or a broken node if its interpolation is wrong."""
        if not leaf.is_interpolated:
            return leaf
        if frozenset() in self.circles:
            return replace(leaf, value=BROKEN)
        try:
            value = self.value(leaf, path, _is_kept(path))
        except InvalidInterpolation as wrong:
            self.found += self.diagnostics(wrong, leaf, path)
            value = replace(leaf, value=BROKEN)
        target = value.span if value.span != leaf.span else None
        return replace(value, span=leaf.span, key=leaf.key, target=target)

    # Reports

    def diagnostics(self, wrong: InvalidInterpolation, leaf: Node, path: KeyPath) -> Iterator[Diagnostic]:
        """Yields the diagnostics about the text of a leaf. A mistake in another value is reported at that
        value. A circle is reported at its first value, and an exceeded limit once."""
        found = replace(wrong.diagnostic, primary=leaf.span)
        here = next((index for index, one in enumerate(wrong.circle) if path[: len(one)] == one), None)
        if wrong.circle or wrong.is_limit:
            circle = frozenset(wrong.circle)
            if circle not in self.circles and (here is not None or wrong.is_limit):
                self.circles.add(circle)
                yield self.circle(found, [*wrong.circle[here:], *wrong.circle[:here]]) if circle else found
        elif wrong.path == path:
            yield found
        elif wrong.path and _is_kept(wrong.path) and found.code == "MC215":
            written = self.root.at(wrong.path)
            assert written is not None
            words = f"`{'.'.join(wrong.path)}` is known only to the workers; this value is needed earlier"
            yield replace(found, seconds=(written.span.with_word(words),))

    def circle(self, found: Diagnostic, circle: list[KeyPath]) -> Diagnostic:
        names = [".".join(one) for one in (*circle, circle[0])]
        nodes = zip(map(self.root.at, circle[1:]), names[2:], strict=True)
        words = [node.span.with_word(f"which refers to `{following}`") for node, following in nodes if node]
        message = f"circular reference: {' -> '.join(names)}"
        return replace(found, message=message, seconds=tuple(words))

    # Evaluation

    def value(self, leaf: Node, path: KeyPath, keep: bool) -> Node:
        """Returns a leaf with every interpolation in its text evaluated. If `keep`, `oc.env` is kept as
        written."""
        self.reads += 1
        if self.reads > MAX_READS:
            message = "the interpolations expand to more values than a recipe may have"
            raise InvalidInterpolation("MC218", message, is_limit=True)
        if leaf.value is BROKEN:
            raise InvalidInterpolation("", "", path=path)  # reported at the value that contains it
        if not leaf.is_interpolated:
            return leaf
        try:
            return self.text(leaf, path, keep)
        except InvalidInterpolation as wrong:
            wrong.path = path if wrong.path is None else wrong.path
            raise

    def text(self, node: Node, path: KeyPath, keep: bool) -> Node:
        parts, values = list(split(node.value)), list[Node]()
        for text, is_inner in parts:
            values.append(self.inner(text, path, keep, node) if is_inner else replace(node, value=text))
        if len(values) == 1:
            return values[0]
        for value, (text, _) in zip(values, parts, strict=True):
            if value.is_mapping or value.is_list or value.value is None:
                collection = "a mapping" if value.is_mapping else "a list"
                what = "nothing" if value.value is None else collection
                message = f"`${{{text}}}` is {what}, which cannot be part of a text"
                raise InvalidInterpolation("MC218", message, "refer to one of its values")
        joined = "".join(str(value.value) for value in values)
        from_environment = any(value.from_environment for value in values)
        return replace(node, value=joined, written=joined, from_environment=from_environment)

    def inner(self, text: str, path: KeyPath, keep: bool, node: Node) -> Node:
        """Evaluates the text between `${` and `}`."""
        if "${" in text:
            text = str(self.value(replace(node, value=text), path, keep).value)
        text = text.strip()
        name, colon, arguments = text.partition(":")
        if not colon:
            return self.reference(text, path, keep)
        if name not in RESOLVERS:
            help = did_you_mean(name, RESOLVERS)
            if name in ("env", "ENV"):
                help = f"write an environment variable as ${{oc.env:{arguments}}}"
            raise InvalidInterpolation("MC214", f"resolver `{name}` does not exist", help)
        given = split_arguments(arguments)
        if name == "oc.decode":
            return self.decoded(given, arguments, node)
        if not given or not given[0] or len(given) > 2:
            count = counted(len(given) if any(given) else 0, "argument")
            message = f"`{name}` takes a name and an optional default, not {count}"
            key = "NAME" if name == "oc.env" else "KEY"
            help = f"write ${{{name}:{key}}}, or with a default: ${{{name}:{key},VALUE}}"
            raise InvalidInterpolation("MC222", message, help)
        return (
            self.environment(given, keep, node) if name == "oc.env" else self.select(given, path, keep, node)
        )

    def decoded(self, given: list[str], arguments: str, node: Node) -> Node:
        if "${oc.env:" in arguments:
            message = "`oc.decode` cannot read a value that only the worker knows"
            help = "write the value itself, or use it as text"
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
            raise InvalidInterpolation("MC215", f"environment variable `{name}` is not set", help)
        value = None if default[0] == "null" else default[0]
        return replace(node, value=value, written=default[0], from_environment=True)

    def select(self, given: list[str], path: KeyPath, keep: bool, node: Node) -> Node:
        name, *default = given
        try:
            return self.reference(name, path, keep)
        except InvalidInterpolation as wrong:
            if wrong.diagnostic.code != "MC212" or wrong.path is not None or not default:
                raise
            return replace(node, value=self.decode(default[0]), written=default[0])

    def reference(self, text: str, path: KeyPath, keep: bool) -> Node:
        target = target_of(text, path)
        if target in self.open:
            circle = tuple(self.open[self.open.index(target) :])
            raise InvalidInterpolation("MC213", "this value refers to itself", circle=circle)
        node = self.root.at(target)
        if node is None and text in RESOLVERS:
            raise InvalidInterpolation("MC222", f"`{text}` takes a name", f"write ${{{text}:NAME}}")
        name = ".".join(target)
        if node is None and any(target[:length] in self.wrong for length in range(1, len(target) + 1)):
            raise InvalidInterpolation("", "", path=target)  # reported at the key
        if node is None:
            help = "write {run_dir}, without `$`" if name == "run_dir" else self.suggestion(target)
            raise InvalidInterpolation("MC212", f"`{name}` is not in the recipe", help, missing=True)
        if node.value == MISSING:
            raise InvalidInterpolation("", "", path=target)  # reported at the value that contains it
        if target == path[: len(target)]:
            raise InvalidInterpolation("MC213", f"this value refers to `{name}`, which contains it")
        if len(self.open) == MAX_CHAIN:
            message = f"more than {MAX_CHAIN} references form one chain"
            raise InvalidInterpolation("MC218", message, is_limit=True)
        self.open.append(target)
        try:
            return with_leaves(node, target, lambda leaf, path: self.value(leaf, path, keep))
        finally:
            self.open.pop()

    def suggestion(self, target: KeyPath) -> str:
        """Returns the help for a reference to a value that does not exist."""
        depth = next(length for length in range(len(target)) if self.root.at(target[: length + 1]) is None)
        parent = self.root.at(target[:depth])
        keys = [key for key, _ in parent.items()] if parent else []
        if near := nearest(target[depth], keys):
            return f"did you mean `${{{'.'.join((*target[:depth], near, *target[depth + 1 :]))}}}`?"
        if target[-1].isupper():
            return f"write an environment variable as ${{oc.env:{target[-1]}}}"
        return did_you_mean("", [".".join((*target[:depth], key)) for key in keys]) if depth else ""


def _is_kept(path: KeyPath) -> bool:
    """Returns whether `oc.env` in the value at a path is kept as written: for the worker, or in `vars` for
    the values that refer to it."""
    return path[:1] == ("vars",) or (len(path) > 2 and (path[0], path[2]) in KEPT)
