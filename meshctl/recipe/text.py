"""YAML text -> a tree of nodes, with every hazard of YAML said as a diagnostic and none raised.

Scalars are read by OmegaConf's own rules, so that 1e3 is a float here because it is one there. Refused: duplicate keys, tags but
YAML's own (OmegaConf's loader would build objects from some), keys that are no text, aliases that lead into themselves, and text
that unfolds to more than a recipe can need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.nodes import BROKEN, Node

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 64
CORE = "tag:yaml.org,2002:"
SCALARS = {"str", "int", "float", "bool", "null"}


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
        return Text(name, found=[Diagnostic("MC001", f"`{name}` is larger than {MAX_BYTES >> 20} MiB, a recipe is not")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _not_utf8(data, error, name)
    result = Text(name, tuple(text.splitlines()))
    try:
        root = _compose(text)
    except yaml.YAMLError as error:
        result.found.append(_syntax(error, result))
        return result
    except RecursionError:
        result.found.append(Diagnostic("MC007", f"`{name}` is nested too deeply", Span(name, 1, 1)))
        return result
    result.tree = _Builder(result).tree(root) if root else Node({}, Span(name, 1, 1))
    return result


def dump(value: Any) -> str:
    """Plain data as YAML text that reads back as the same."""
    return yaml.dump(value, Dumper=_dumper(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


@cache
def _scalars() -> Any:
    """How OmegaConf tells a number from text."""
    return get_yaml_loader().yaml_implicit_resolvers


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


def _compose(text: str) -> Any:
    loader = _loader()(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def scalar(written: str) -> Any:
    """What YAML reads from a plain scalar; text that is none stays text."""
    loader = _loader()("")
    try:
        tag = loader.resolve(yaml.ScalarNode, written, (True, False))
        return _construct(loader, yaml.ScalarNode(tag, written))
    except ValueError:
        return written
    finally:
        loader.dispose()


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

    def __init__(self, text: Text) -> None:
        self.text = text
        self.open: set[int] = set()
        self.count = 0
        self.loader = _loader()("")

    def tree(self, root: Any) -> Node:
        try:
            return self.build(root, 0)
        finally:
            self.loader.dispose()

    def say(self, code: str, message: str, span: Span, *seconds: Span, help: str = "") -> None:
        self.text.found.append(Diagnostic(code, message, span, seconds, help))

    def build(self, node: Any, depth: int, key: Span | None = None) -> Node:
        span = self.span(node)
        self.count += 1
        if id(node) in self.open:
            self.say("MC007", "this alias leads into itself", span)
            return Node(BROKEN, span, key)
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            if self.count == MAX_NODES + 1 or depth > MAX_DEPTH:
                self.count = MAX_NODES + 2
                self.say("MC007", f"this unfolds to more than {MAX_NODES:,} values or {MAX_DEPTH} levels", span)
            return Node(BROKEN, span, key)
        self.open.add(id(node))
        try:
            return self.built(node, span, depth, key)
        finally:
            self.open.discard(id(node))

    def built(self, node: Any, span: Span, depth: int, key: Span | None) -> Node:
        kind = node.tag.removeprefix(CORE)
        allowed = {"map"} if isinstance(node, yaml.MappingNode) else {"seq"} if isinstance(node, yaml.SequenceNode) else SCALARS
        if not node.tag.startswith(CORE) or kind not in allowed:
            self.say("MC006", f"the tag `{node.tag.replace(CORE, '!!')}` is not allowed", span, help="a recipe is plain data: remove it")
            return Node(BROKEN, span, key)
        if isinstance(node, yaml.MappingNode):
            return Node(self.mapping(node, depth), span, key)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, depth + 1) for item in node.value], span, key)
        try:
            return Node(_construct(self.loader, node), span, key, written=node.value)
        except (ValueError, KeyError):
            self.say("MC006", f"`{node.value[:40]}` is no {kind}", span)
            return Node(BROKEN, span, key)

    def mapping(self, node: Any, depth: int) -> dict[str, Node]:
        items: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            span = self.span(key_node)
            if key_node.tag == CORE + "merge":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    built = self.build(source, depth + 1, span)
                    merged = {**dict(built.items()), **merged}
                continue
            key = self.key(key_node, span)
            value = self.build(value_node, depth + 1, span)
            if key in items:
                first = items[key].key or items[key].span
                self.say("MC005", f"`{key}` is given twice", span, first.with_word("first given here"), help="keep one of them")
            elif key is not None:
                items[key] = value
        return {**merged, **items}

    def key(self, node: Any, span: Span) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or node.tag in (CORE + "null", CORE + "bool"):
            shown = f"`{node.value}` is a {node.tag.removeprefix(CORE)}" if isinstance(node, yaml.ScalarNode) else "this is none"
            self.say("MC008", f"a key must be text, {shown} in YAML 1.1", span, help="quote it")
            return None
        return str(node.value)

    def span(self, node: Any) -> Span:
        start, end = node.start_mark, node.end_mark
        line = self.text.lines[start.line] if start.line < len(self.text.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            stop = start.column + 1
        return Span(self.text.name, start.line + 1, start.column + 1, max(1, stop - start.column))


def _not_utf8(data: bytes, error: UnicodeDecodeError, name: str) -> Text:
    before = data[: error.start]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    lines = tuple(data.decode("utf-8", "replace").splitlines())
    message = f"`{name}` is not UTF-8: byte 0x{data[error.start]:02x} on line {line}"
    return Text(name, lines, None, [Diagnostic("MC002", message, Span(name, line, column), help="save the file as UTF-8")])


def _syntax(error: yaml.YAMLError, text: Text) -> Diagnostic:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "this is no YAML")
    span = Span(text.name, mark.line + 1, mark.column + 1) if mark else Span(text.name, 1, 1)
    if tab := next(_tabs(text, span.line), None):
        return Diagnostic("MC003", "a tab indents this line, YAML wants spaces", tab, help="use spaces")
    if span.line > len(text.lines):
        span = Span(text.name, max(1, len(text.lines)), 1)
    if "document" in problem:
        return Diagnostic("MC003", "a recipe is one YAML document, here a second begins", span, help="remove the `---`")
    if "alias" in problem:
        return Diagnostic("MC003", f"this alias names no anchor ({problem})", span)
    line = text.lines[span.line - 1] if text.lines else ""
    if "node content" in problem and "???" in line:
        return Diagnostic(
            "MC003", "inside brackets, YAML does not read a bare ???", replace(span, column=line.index("???") + 1, width=3), help="quote it"
        )
    help = "is a quote, a bracket or a colon missing above?" if "could not find" in problem or "expected" in problem else ""
    return Diagnostic("MC003", f"this is not YAML: {_own_words(problem)}", replace(span, width=1), help=help)


def _tabs(text: Text, line: int) -> Iterator[Span]:
    """A tab in the indentation of the line where the parser gave up, or of the one before."""
    for number in (line, line - 1):
        if 1 <= number <= len(text.lines) and (found := re.match(r"( *)\t", text.lines[number - 1])):
            yield Span(text.name, number, len(found[1]) + 1)


def _own_words(problem: str) -> str:
    words = {
        "mapping values are not allowed": "a second `:` on one line",
        "could not find expected ':'": "a `:` is missing",
        "did not find expected key": "a key is expected here",
        "did not find expected ',' or ']'": "a `,` or `]` is missing",
        "did not find expected ',' or '}'": "a `,` or `}` is missing",
        "did not find expected '-' indicator": "a `-` is expected here",
        "did not find expected node content": "a value is missing, or must be quoted",
        "found character that cannot start any token": "no value can start with this character, quote it",
        "found unexpected end of stream": "a quote is not closed",
    }
    return next((said for found, said in words.items() if found in problem), problem)
