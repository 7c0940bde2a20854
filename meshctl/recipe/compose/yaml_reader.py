"""YAML text -> a tree of nodes, with every hazard of YAML said as a diagnostic and none raised.

Scalars are read by OmegaConf's own rules, so that 1e3 is a float here because it is one there. Refused:
duplicate keys, tags but YAML's own (OmegaConf's loader would build objects from some), keys that are no text,
aliases that lead into themselves, and text that unfolds to more than a recipe can need.
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
"""Characters of a number; Python itself refuses to read or write much longer ones."""
CORE = "tag:yaml.org,2002:"
SCALARS = {"str", "int", "float", "bool", "null"}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
FLOAT = re.compile(
    rf"(?:[-+]?{_DIGITS}\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?{_DIGITS}[eE][-+]?[0-9]+|\.{_DIGITS}(?:[eE][-+][0-9]+)?"
    rf"|[-+]?{_DIGITS}(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""Floats as OmegaConf knows them."""


@dataclass
class Text:
    """One file of a recipe, read."""

    name: str
    """As the user would name it."""
    lines: tuple[str, ...] = ()
    tree: Node | None = None
    """None where it could not be read at all."""
    found: list[Diagnostic] = field(default_factory=list)


def read(data: bytes, name: str) -> Text:
    """The tree of one YAML file, or of nothing, an empty mapping."""
    if len(data) > MAX_BYTES:
        return Text(
            name,
            found=[Diagnostic("MC001", f"`{name}` is larger than {MAX_BYTES >> 20} MiB, a recipe is not")],
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _not_utf8(data, error, name)
    result = Text(name, tuple(text.splitlines()))
    try:
        if too_much := _read(text, exceeded_limit):
            what, mark = too_much
            result.found.append(
                Diagnostic(
                    "MC010", f"this {what}, a recipe needs less", Span(name, mark.line + 1, mark.column + 1)
                )
            )
            return result
        root = _read(text, lambda loader: loader.get_single_node())
    except yaml.YAMLError as error:
        result.found.append(explain(error, name, text))
        return result
    result.tree = _Builder(result, text).tree(root) if root else Node({}, Span(name, 1, 1))
    return result


def dump(value: Any) -> str:
    """Plain data as YAML text that reads back as the same."""
    return yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )


@cache
def _scalars() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """How OmegaConf tells a number from text, by the first character: 1e3 is a float, a date is text. Its
    loader is not asked, since it takes longer to load than a recipe to read; a test holds that it says the
    same."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    kept = {
        first: [pair for pair in pairs if pair[0] != CORE + "timestamp"] for first, pairs in resolvers.items()
    }
    return kept | {first: [*kept.get(first, []), (CORE + "float", FLOAT)] for first in "-+0123456789."}


@cache
def _loader() -> Any:
    """The fast parser, with the scalars of OmegaConf."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = _scalars()

    return Loader


@cache
def _dumper() -> Any:
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        yaml_implicit_resolvers = _scalars()

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return Dumper


def _read(text: str, what: Callable[[Any], Any]) -> Any:
    loader = _loader()(text)
    try:
        return what(loader)
    finally:
        loader.dispose()


def scalar(written: str) -> Any:
    """What YAML reads from a plain scalar; text that is none stays text."""
    loader = _loader()("")
    try:
        tag = loader.resolve(yaml.ScalarNode, written, (True, False))
        return written if _too_long(tag, written) else _construct(loader, yaml.ScalarNode(tag, written))
    except ValueError:
        return written
    finally:
        loader.dispose()


def _too_long(tag: str, written: str) -> bool:
    return len(written) > MAX_DIGITS and tag in (CORE + "int", CORE + "float")


def _construct(loader: Any, node: Any) -> Any:
    return {
        "int": loader.construct_yaml_int,
        "float": loader.construct_yaml_float,
        "bool": loader.construct_yaml_bool,
        "null": lambda node: None,
        "str": lambda node: node.value,
    }[node.tag.removeprefix(CORE)](node)


class _Builder:
    """yaml's nodes into ours, once each alias is unfolded."""

    def __init__(self, text: Text, whole: str) -> None:
        self.text, self.whole = text, whole
        self.open: set[int] = set()
        self.loader = _loader()("")

    def tree(self, root: Any) -> Node:
        try:
            return self.build(root)
        finally:
            self.loader.dispose()

    def say(
        self, code: str, message: str, span: Span, *seconds: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        self.text.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes))

    def build(self, node: Any, key: Span | None = None) -> Node:
        span = self.span(node)
        if id(node) in self.open:
            marks = _read(
                self.whole, lambda loader: alias_within(loader, node.start_mark.index, node.end_mark.index)
            )
            alias = self.between(*marks) if marks else span
            self.say("MC007", "this alias leads into itself", alias, span.with_word("it stands inside this"))
            return Node(BROKEN, span, key)
        self.open.add(id(node))
        try:
            return self.built(node, span, key)
        finally:
            self.open.discard(id(node))

    def built(self, node: Any, span: Span, key: Span | None) -> Node:
        kind = node.tag.removeprefix(CORE)
        allowed = (
            {"map"}
            if isinstance(node, yaml.MappingNode)
            else {"seq"}
            if isinstance(node, yaml.SequenceNode)
            else SCALARS
        )
        if node.tag == CORE + "value":
            self.say("MC006", "a bare `=` is a tag of YAML 1.1", span, help='quote it: "="')
            return Node(BROKEN, span, key)
        if not node.tag.startswith(CORE) or kind not in allowed:
            self.say(
                "MC006",
                f"the tag `{node.tag.replace(CORE, '!!')}` is not allowed",
                span,
                help="a recipe is plain data: remove it",
            )
            return Node(BROKEN, span, key)
        if isinstance(node, yaml.MappingNode):
            return Node(self.mapping(node), span, key)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item) for item in node.value], span, key)
        if _too_long(node.tag, node.value):
            self.say("MC006", f"a number of {len(node.value):,} characters is none", span)
            return Node(BROKEN, span, key)
        try:
            return Node(_construct(self.loader, node), span, key, written=node.value)
        except (ValueError, KeyError, IndexError):
            self.say("MC006", f"`{node.value[:40]}` is no {kind}", span)
            return Node(BROKEN, span, key)

    def mapping(self, node: Any) -> dict[str, Node]:
        items: dict[str, Node] = {}
        pairs: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, Node] = {}
        merge_key: Span | None = None
        for key_node, value_node in node.value:
            span = self.span(key_node)
            if key_node.tag == CORE + "merge":
                if merge_key:
                    self.twice("<<", span, merge_key, "merge several in one list: `<<: [*a, *b]`")
                merged, merge_key = _under(merged, self.merged(value_node, span)), span
                continue
            key, value = self.key(key_node, span), self.build(value_node, span)
            if key is not None and key in items:
                fixes = self.removal(pairs[key], (key_node, value_node), node.flow_style)
                self.twice(key, span, items[key].key or items[key].span, "keep one of them", fixes)
                items[key] = (
                    merge(items[key], value) if items[key].is_mapping and value.is_mapping else items[key]
                )
            elif key is not None:
                items[key], pairs[key] = value, (key_node, value_node)
        return _under(items, merged)

    def twice(self, key: str, span: Span, first: Span, help: str, fixes: tuple[Fix, ...] = ()) -> None:
        first = first.with_word("first given here")
        self.say("MC005", f"`{key}` is given twice", span, first, help=help, fixes=fixes)

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
        """Returns the text of a key and its value if it is whole on one line and means the same wherever it is
        written: without anchors, aliases and tags."""
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
        """What `<<` puts into a mapping; of several, the first that says a key wins."""
        found: dict[str, Node] = {}
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            built = self.build(source, key)
            if not built.is_mapping and built.value is not BROKEN:
                self.say(
                    "MC009",
                    "`<<` merges a mapping, this is none",
                    built.span,
                    help="name the anchor of one: `<<: *anchor`",
                )
            found = _under(found, dict(built.items()))
        return found

    def key(self, node: Any, span: Span) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or node.tag in (CORE + "null", CORE + "bool"):
            shown = (
                f"`{node.value}` is a {node.tag.removeprefix(CORE)}"
                if isinstance(node, yaml.ScalarNode)
                else "this is none"
            )
            plain = isinstance(node, yaml.ScalarNode) and not node.style
            fixes = (
                (Fix(span, node.value, f'"{node.value}"'),)
                if plain and re.fullmatch(r"[\w~]+", node.value)
                else ()
            )
            self.say("MC008", f"a key must be text, {shown} in YAML 1.1", span, help="quote it", fixes=fixes)
            return None
        return str(node.value)

    def span(self, node: Any) -> Span:
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            return Span(self.text.name, node.start_mark.line + 1, node.start_mark.column + 1)
        return self.between(node.start_mark, node.end_mark)

    def between(self, start: Any, end: Any) -> Span:
        line = self.text.lines[start.line] if start.line < len(self.text.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        return Span(self.text.name, start.line + 1, start.column + 1, max(1, stop - start.column))


def _under(items: dict[str, Node], merged: dict[str, Node]) -> dict[str, Node]:
    """Both, where the items that a mapping says itself replace those that are merged into it."""
    return {
        **merged,
        **{key: over(item, merged[key]) if key in merged else item for key, item in items.items()},
    }


def _not_utf8(data: bytes, error: UnicodeDecodeError, name: str) -> Text:
    before = data[: error.start]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    lines = tuple(data.decode("utf-8", "replace").splitlines())
    message = f"`{name}` is not UTF-8: byte 0x{data[error.start]:02x} on line {line}"
    return Text(
        name,
        lines,
        None,
        [Diagnostic("MC002", message, Span(name, line, column), help="save the file as UTF-8")],
    )
