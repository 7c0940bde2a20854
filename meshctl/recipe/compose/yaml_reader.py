"""Reads YAML text into a tree of nodes. Every hazard of YAML becomes a diagnostic; nothing is raised.

Scalars are read by OmegaConf's rules, so 1e3 is a float here because it is one there. Refused are duplicate
keys, tags other than YAML's own (OmegaConf's loader would build objects from some), keys that are no text,
aliases that refer to themselves, and text that unfolds to more than a recipe can need.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.errors import alias_within, exceeded_limit, explain
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, merge, over

MAX_BYTES = 1 << 20
MAX_DIGITS = 100
"""Maximum number of characters of a number; Python itself refuses to read or write much longer ones."""
CORE = "tag:yaml.org,2002:"
SCALARS = {"str", "int", "float", "bool", "null"}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
FLOAT = re.compile(
    rf"(?:[-+]?{_DIGITS}\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?{_DIGITS}[eE][-+]?[0-9]+|\.{_DIGITS}(?:[eE][-+][0-9]+)?"
    rf"|[-+]?{_DIGITS}(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""What OmegaConf reads as a float."""


@dataclass
class Text:
    """One file of a recipe, read."""

    name: str
    """The path as the user would name it."""
    lines: tuple[str, ...] = ()
    tree: Node | None = None
    """None if the file could not be read at all."""
    found: list[Diagnostic] = field(default_factory=list)


def read(data: bytes, name: str) -> Text:
    """Reads the bytes of one YAML file; an empty file is an empty mapping."""
    if len(data) > MAX_BYTES:
        message = f"`{name}` is larger than {MAX_BYTES >> 20} MiB, a recipe is not"
        return Text(name, found=[Diagnostic("MC001", message)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _not_utf8(data, error, name)
    result = Text(name, tuple(text.splitlines()))
    try:
        if exceeded := _with_loader(text, exceeded_limit):
            what, mark = exceeded
            span = Span(name, mark.line + 1, mark.column + 1)
            result.found.append(Diagnostic("MC010", f"this {what}, a recipe needs less", span))
            return result
        root = _with_loader(text, lambda loader: loader.get_single_node())
    except yaml.YAMLError as error:
        result.found.append(explain(error, name, text))
        return result
    result.tree = _Builder(result, text).tree(root) if root else Node({}, Span(name, 1, 1))
    return result


def _not_utf8(data: bytes, error: UnicodeDecodeError, name: str) -> Text:
    before = data[: error.start]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    message = f"`{name}` is not UTF-8: byte 0x{data[error.start]:02x} on line {line}"
    wrong = Diagnostic("MC002", message, Span(name, line, column), help="save the file as UTF-8")
    return Text(name, tuple(data.decode("utf-8", "replace").splitlines()), None, [wrong])


def dump(value: Any) -> str:
    """Returns plain data as YAML text that reads back as the same data."""
    text: str = yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )
    return text


# Scalars


def scalar(written: str) -> Any:
    """Returns what YAML reads from a plain scalar; what is no valid scalar stays text."""
    loader = _loader()("")
    try:
        tag = loader.resolve(yaml.ScalarNode, written, (True, False))
        return written if _is_too_long(tag, written) else _construct(loader, yaml.ScalarNode(tag, written))
    except ValueError:
        return written
    finally:
        loader.dispose()


@cache
def scalar_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Returns OmegaConf's rules for the type of a scalar, by its first character: 1e3 is a float, a date is
    text.

    They are written out here, since OmegaConf's loader takes longer to import than a recipe to read.
    """
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
        resolvers[first] = [pair for pair in pairs if pair[0] != CORE + "timestamp"]
    for first in "-+0123456789.":
        resolvers.setdefault(first, []).append((CORE + "float", FLOAT))
    return resolvers


@cache
def _loader() -> Any:
    """Returns the parser in C with OmegaConf's scalars."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = scalar_resolvers()

    return Loader


@cache
def _dumper() -> Any:
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        yaml_implicit_resolvers = scalar_resolvers()

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return Dumper


def _with_loader(text: str, call: Callable[[Any], Any]) -> Any:
    loader = _loader()(text)
    try:
        return call(loader)
    finally:
        loader.dispose()


def _is_too_long(tag: str, written: str) -> bool:
    return len(written) > MAX_DIGITS and tag in (CORE + "int", CORE + "float")


def _construct(loader: Any, node: Any) -> Any:
    constructors = {
        "int": loader.construct_yaml_int,
        "float": loader.construct_yaml_float,
        "bool": loader.construct_yaml_bool,
        "null": lambda node: None,
        "str": lambda node: node.value,
    }
    return constructors[node.tag.removeprefix(CORE)](node)


# Trees


class _Builder:
    """Builds our nodes from yaml's, in which aliases are unfolded."""

    def __init__(self, text: Text, whole: str) -> None:
        self.text, self.whole = text, whole
        self.open: set[int] = set()
        """The ids of the nodes around the current one."""
        self.loader = _loader()("")

    def tree(self, root: Any) -> Node:
        try:
            return self.build(root)
        finally:
            self.loader.dispose()

    def report(
        self, code: str, message: str, span: Span, *seconds: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        self.text.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes))

    def build(self, node: Any, key: Span | None = None) -> Node:
        if id(node) in self.open:
            return self.cycle(node, key)
        self.open.add(id(node))
        try:
            return self.build_opened(node, self.span(node), key)
        finally:
            self.open.discard(id(node))

    def cycle(self, node: Any, key: Span | None) -> Node:
        """Reports an alias that refers to a collection around it."""
        span, start, stop = self.span(node), node.start_mark.index, node.end_mark.index
        marks = _with_loader(self.whole, lambda loader: alias_within(loader, start, stop))
        alias = self.between(*marks) if marks else span
        self.report("MC007", "this alias leads into itself", alias, span.with_word("it stands inside this"))
        return Node(BROKEN, span, key)

    def build_opened(self, node: Any, span: Span, key: Span | None) -> Node:
        if self.is_refused_tag(node, span):
            return Node(BROKEN, span, key)
        if isinstance(node, yaml.MappingNode):
            return Node(self.mapping(node), span, key)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item) for item in node.value], span, key)
        if _is_too_long(node.tag, node.value):
            self.report("MC006", f"a number of {len(node.value):,} characters is none", span)
            return Node(BROKEN, span, key)
        try:
            return Node(_construct(self.loader, node), span, key, written=node.value)
        except (ValueError, KeyError, IndexError):
            kind = node.tag.removeprefix(CORE)
            self.report("MC006", f"`{node.value[:40]}` is no {kind}", span)
            return Node(BROKEN, span, key)

    def is_refused_tag(self, node: Any, span: Span) -> bool:
        """Reports a tag that is not YAML's own for this kind of node."""
        kind = node.tag.removeprefix(CORE)
        if node.tag == CORE + "value":
            self.report("MC006", "a bare `=` is a tag of YAML 1.1", span, help='quote it: "="')
            return True
        allowed = SCALARS
        if not isinstance(node, yaml.ScalarNode):
            allowed = {"map"} if isinstance(node, yaml.MappingNode) else {"seq"}
        if node.tag.startswith(CORE) and kind in allowed:
            return False
        message = f"the tag `{node.tag.replace(CORE, '!!')}` is not allowed"
        self.report("MC006", message, span, help="a recipe is plain data: remove it")
        return True

    # Mappings

    def mapping(self, node: Any) -> dict[str, Node]:
        items: dict[str, Node] = {}
        pairs: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, Node] = {}
        merge_key: Span | None = None
        for key_node, value_node in node.value:
            span = self.span(key_node)
            if key_node.tag == CORE + "merge":
                if merge_key:
                    self.report_twice("<<", span, merge_key, "merge several in one list: `<<: [*a, *b]`")
                merged, merge_key = _under(merged, self.merged(value_node, span)), span
                continue
            key, value = self.key(key_node, span), self.build(value_node, span)
            if key is None:
                continue
            if key not in items:
                items[key], pairs[key] = value, (key_node, value_node)
                continue
            old = items[key]
            fixes = self.removal(pairs[key], (key_node, value_node), node.flow_style)
            self.report_twice(key, span, old.key or old.span, "keep one of them", fixes)
            if old.is_mapping and value.is_mapping:
                items[key] = merge(old, value)
        return _under(items, merged)

    def report_twice(self, key: str, span: Span, first: Span, help: str, fixes: tuple[Fix, ...] = ()) -> None:
        first = first.with_word("first given here")
        self.report("MC005", f"`{key}` is given twice", span, first, help=help, fixes=fixes)

    def removal(self, first: tuple[Any, Any], later: tuple[Any, Any], is_flow: bool) -> tuple[Fix, ...]:
        """Returns the edit that removes the later of two keys, if both are followed by the same text on their
        own lines."""
        written, mark = self.pair_text(*later), later[0].start_mark
        line = self.text.lines[mark.line][: mark.column]
        before = re.search(r",\s*$" if is_flow else r"^\s*$", line)
        if not written or written != self.pair_text(*first) or before is None:
            return ()
        start = before.start() if is_flow else mark.column
        was = line[start:] + written
        return (Fix(Span(self.text.name, mark.line + 1, start + 1, len(was)), was, ""),)

    def pair_text(self, key: Any, value: Any) -> str:
        """Returns the text of a key and its value if it is whole on one line and means the same wherever it
        is written: without anchors, aliases and tags."""
        line, stop = self.text.lines[key.start_mark.line], value.end_mark.column
        colon = line[key.end_mark.column : value.start_mark.column]
        written = line[value.start_mark.column : stop]
        is_one_line = key.end_mark.line == value.start_mark.line == value.end_mark.line
        is_quoted = isinstance(value, yaml.ScalarNode) and value.style in ("'", '"')
        is_plain = is_quoted or not re.search(r"[&*!|>]", written)
        if not (written and is_one_line and is_plain and re.fullmatch(r"\s*:\s+", colon)):
            return ""
        return str(line[key.start_mark.column : stop])

    def merged(self, node: Any, key: Span) -> dict[str, Node]:
        """Returns what `<<` merges into a mapping; the first of several sources that gives a key wins."""
        found: dict[str, Node] = {}
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            built = self.build(source, key)
            if not built.is_mapping and built.value is not BROKEN:
                help = "name the anchor of one: `<<: *anchor`"
                self.report("MC009", "`<<` merges a mapping, this is none", built.span, help=help)
            found = _under(found, dict(built.items()))
        return found

    def key(self, node: Any, span: Span) -> str | None:
        """Returns the text of a key, or None for a key that is no text, which is reported."""
        is_scalar = isinstance(node, yaml.ScalarNode)
        if is_scalar and node.tag not in (CORE + "null", CORE + "bool"):
            return str(node.value)
        what = f"`{node.value}` is a {node.tag.removeprefix(CORE)}" if is_scalar else "this is none"
        fixes: tuple[Fix, ...] = ()
        if is_scalar and not node.style and re.fullmatch(r"[\w~]+", node.value):
            fixes = (Fix(span, node.value, f'"{node.value}"'),)
        self.report("MC008", f"a key must be text, {what} in YAML 1.1", span, help="quote it", fixes=fixes)
        return None

    # Spans

    def span(self, node: Any) -> Span:
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            return Span(self.text.name, node.start_mark.line + 1, node.start_mark.column + 1)
        return self.between(node.start_mark, node.end_mark)

    def between(self, start: Any, end: Any) -> Span:
        """Returns the span between two marks; it ends with the line if the text does not."""
        line = self.text.lines[start.line] if start.line < len(self.text.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        return Span(self.text.name, start.line + 1, start.column + 1, max(1, stop - start.column))


def _under(items: dict[str, Node], merged: dict[str, Node]) -> dict[str, Node]:
    """Returns both, where the items that a mapping gives itself replace those that are merged into it."""
    own = {key: over(item, merged[key]) if key in merged else item for key, item in items.items()}
    return {**merged, **own}
