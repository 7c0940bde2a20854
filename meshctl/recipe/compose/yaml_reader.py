"""Reads YAML text into a tree of nodes. Errors become diagnostics; nothing is raised.

Scalars are parsed by OmegaConf's rules, so that 1e3 is a float. Duplicate keys, tags other than YAML's own
(OmegaConf's loader would build objects from some), keys that are not text, aliases that contain themselves,
and texts that exceed the limits of this file are refused.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_scalars import CORE, SCALARS, construct, is_too_long, loader_class
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, merge, over
from meshctl.text.english import abbreviated

MAX_BYTES = 1 << 20
LARGE = "put large data into a file of its own, and give its path to a component"
MAX_NODES = 20_000
"""Maximum number of values of a text. An alias counts as many values as its anchor contains."""
MAX_DEPTH = 64
"""Maximum nesting depth of mappings and lists."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass
class Text:
    """The result of reading one file of a recipe."""

    name: str
    """The path as shown to the user."""
    lines: tuple[str, ...] = ()
    tree: Node | None = None
    """None if the file is not valid YAML or cannot be read."""
    found: list[Diagnostic] = field(default_factory=list)
    refused: list[Node] = field(default_factory=list)
    """Values that are not in the tree, because they or their keys are wrong."""


class _Unreadable(Exception):
    """Ends the reading of a text for which no tree can be built."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def read(data: bytes, name: str) -> Text:
    """Parses the bytes of one YAML file. An empty file is an empty mapping."""
    if len(data) > MAX_BYTES:
        message = f"`{name}` is larger than {MAX_BYTES >> 20} MiB, the limit for a recipe"
        return Text(name, found=[Diagnostic("MC001", message)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, last = before.count(b"\n") + 1, before.rpartition(b"\n")[2].decode("utf-8", "replace")
        message = f"`{name}` is not UTF-8: byte 0x{data[error.start]:02x} on line {line}"
        if data.startswith(UTF_16):
            message = f"`{name}` is UTF-16, not UTF-8"
        wrong = Diagnostic("MC002", message, Span(name, line, len(last) + 1), help="save the file as UTF-8")
        return Text(name, tuple(data.decode("utf-8", "replace").splitlines()), None, [wrong])
    result = Text(name, tuple(text.splitlines()))
    loader = loader_class()(text)
    try:
        result.tree = _Builder(result, loader).tree()
    except yaml.YAMLError as error:
        result.found = [explain(error, name, text)]
    except _Unreadable as error:
        result.found = [error.diagnostic]
    finally:
        loader.dispose()
    return result


# Trees


@dataclass
class _Anchor:
    span: Span
    node: Node | None = None
    """None until the end of the value is reached. An alias before that is part of its own anchor."""
    count: int = 1
    """Number of values that it contains."""
    height: int = 0
    """Nesting depth of the mappings and lists in it."""
    inside: list[Span] = field(default_factory=list)
    """The aliases in it that refer to itself."""


@dataclass
class _Builder:
    """Builds nodes from the parser's events, in one pass. Aliases are expanded. The limits are checked while
    values are counted, so that the expansion of an alias bomb stops early."""

    text: Text
    loader: Any
    anchors: dict[str, _Anchor] = field(default_factory=dict)
    count: int = 0
    depth: int = 0
    height: int = 0
    """Nesting depth of the value that was read last."""

    def event(self) -> Any:
        return self.loader.get_event()

    def tree(self) -> Node:
        self.event()  # the beginning of the stream
        if isinstance(self.event(), yaml.StreamEndEvent):
            return Node({}, Span(self.text.name, 1, 1))
        root = self.node(self.event())
        self.event()  # the end of the document
        event = self.event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise yaml.MarkedYAMLError(problem="a second document", problem_mark=event.start_mark)
        return root

    def report(
        self, code: str, message: str, span: Span, *seconds: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        self.text.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes))

    def add(self, event: Any, count: int, height: int = 0) -> None:
        """Counts values. Raises `_Unreadable` if a limit is exceeded."""
        self.count, self.height = self.count + count, height
        exceeded = f"expands to more than {MAX_NODES:,} values" if self.count > MAX_NODES else ""
        if self.depth + height > MAX_DEPTH:
            exceeded = f"is nested deeper than {MAX_DEPTH} levels"
        if exceeded:
            message = f"this {exceeded}, the limit for a recipe"
            raise _Unreadable(Diagnostic("MC010", message, self.span(event.start_mark), help=LARGE))

    def node(self, event: Any, key: Span | None = None, count: int = 1) -> Node:
        """Returns the value that begins with `event`. `count` is 1 for a value and 0 for a key of a
        mapping."""
        span = self.between(event)
        if isinstance(event, yaml.AliasEvent):
            return self.repeated(event, span, key, count)
        anchor = self.anchor(event, span)
        if isinstance(event, yaml.ScalarEvent):
            self.add(event, count)
            node = self.scalar(event, span, key)
        else:
            node = self.collection(event, key, count, anchor)
        anchor.node = node
        return node

    def anchor(self, event: Any, span: Span) -> _Anchor:
        """Returns a new `_Anchor` for a value, and records it if the value has an anchor."""
        known = _Anchor(span)
        if event.anchor is not None:
            if first := self.anchors.get(event.anchor):
                here, message = first.span.with_word("first given here"), f"`&{event.anchor}` is given twice"
                self.report("MC003", message, span, here, help="rename one of them")
            self.anchors[event.anchor] = known
        return known

    def repeated(self, event: Any, span: Span, key: Span | None, count: int) -> Node:
        """Returns a copy of the anchored value for an alias."""
        anchor = self.anchors.get(event.anchor)
        if anchor is None:
            help = f"write `&{event.anchor}` before a value above, or quote a text that begins with `*`"
            message = f"anchor `{event.anchor}` of this alias does not exist"
            self.report("MC003", message, span, help=help)
            anchor = _Anchor(span, Node(BROKEN, span))
        self.add(event, anchor.count - 1 + count, anchor.height)
        if anchor.node is None:
            anchor.inside.append(span)
            return Node(BROKEN, span, key)
        return replace(anchor.node, key=key)

    def scalar(self, event: Any, span: Span, key: Span | None) -> Node:
        last = event.end_mark.line - (event.end_mark.column == 0 and event.style in ("|", ">"))
        node = Node(event.value, span, key, event.value, lines=max(1, last - event.start_mark.line + 1))
        tag = self.tag(event)
        if tag == CORE + "str":
            return node
        wrong = ""
        if self.is_refused_tag(tag, SCALARS, span):
            return self.broken(node)
        if is_too_long(tag, node.written):
            wrong = f"a number of {len(node.written):,} characters is too long"
        else:
            try:
                return replace(node, value=construct(self.loader, yaml.ScalarNode(tag, node.written)))
            except (ValueError, KeyError, IndexError):
                wrong = f"`{abbreviated(node.written, 40)}` is not a valid {tag.removeprefix(CORE)}"
        self.report("MC006", wrong, span)
        return self.broken(node)

    def broken(self, node: Node) -> Node:
        self.text.refused.append(node)
        return Node(BROKEN, node.span, node.key)

    def tag(self, event: Any) -> str:
        if event.tag not in (None, "!"):
            return str(event.tag)
        return str(self.loader.resolve(yaml.ScalarNode, event.value, event.implicit))

    def collection(self, event: Any, key: Span | None, count: int, anchor: _Anchor) -> Node:
        self.depth += 1
        self.add(event, count)
        before, is_mapping = self.count, isinstance(event, yaml.MappingStartEvent)
        read = self.mapping if is_mapping else self.list
        value, height, end = read()
        self.depth -= 1
        self.height = height
        anchor.count, anchor.height = 1 + self.count - before, height
        span = self.between(event, end)
        for alias in anchor.inside:
            inside = span.with_word("the anchor")
            self.report("MC007", "this alias is inside its own anchor", alias, inside)
        kind = "map" if is_mapping else "seq"
        tag = CORE + kind if event.tag in (None, "!") else event.tag
        if self.is_refused_tag(tag, {kind}, span):
            return self.broken(Node(value, span, key))
        return Node(value, span, key)

    def is_refused_tag(self, tag: str, allowed: set[str], span: Span) -> bool:
        """Returns whether a tag is not one of YAML's own tags for this kind of node. Reports it."""
        if tag == CORE + "value":
            self.report("MC006", "a bare `=` is a tag of YAML 1.1", span, help='quote it: "="')
            return True
        if tag.startswith(CORE) and tag.removeprefix(CORE) in allowed:
            return False
        message = f"the tag `{tag.replace(CORE, '!!')}` is not allowed"
        self.report("MC006", message, span, help="remove it: a recipe is plain data")
        return True

    def list(self) -> tuple[list[Node], int, Any]:
        """Returns (items, nesting depth, end event) of a list."""
        items, height = list[Node](), 1
        while not isinstance(event := self.event(), yaml.SequenceEndEvent):
            items.append(self.node(event))
            height = max(height, 1 + self.height)
        return items, height, event

    # Mappings

    def mapping(self) -> tuple[dict[str, Node], int, Any]:
        """Returns (items, nesting depth, end event) of a mapping. The items of the mapping itself override
        those that `<<` merges into it."""
        items, merged = dict[str, Node](), dict[str, Node]()
        merge_key: Span | None = None
        height = 1
        while not isinstance(event := self.event(), yaml.MappingEndEvent):
            is_merge = isinstance(event, yaml.ScalarEvent) and self.tag(event) == CORE + "merge"
            key, span = self.key(event)
            height = max(height, 1 + self.height)
            value = self.node(self.event(), span)
            height = max(height, 1 + self.height)
            first, help = None, "keep one of them"
            if is_merge:
                first, help = merge_key, "merge several in one list: `<<: [*a, *b]`"
                merged, merge_key = _under(merged, self.merged(value)), span
            elif key is None:
                self.text.refused.append(value)
            elif key not in items:
                items[key] = value
            else:
                old = items[key]
                first = old.key or old.span
                self.text.refused.append(value)
                if old.is_mapping and value.is_mapping:
                    items[key] = merge(old, value)
            if first:
                message = f"`{'<<' if is_merge else key}` is given twice"
                self.report("MC005", message, span, first.with_word("first given here"), help=help)
        return _under(items, merged), height, event

    def merged(self, value: Node) -> dict[str, Node]:
        """Returns the items that `<<` merges into a mapping. If several sources have a key, the first one is
        used."""
        found: dict[str, Node] = {}
        for source in value.value if value.is_list else [value]:
            if not source.is_mapping and source.value is not BROKEN:
                help = "write the anchor of a mapping: `<<: *anchor`"
                self.report("MC009", "`<<` can merge only mappings", source.span, help=help)
            found = {**dict(source.items()), **found}
        return found

    def key(self, event: Any) -> tuple[str | None, Span]:
        """Returns the text and the span of a key. A key that is not a string is reported; its text is None if
        it is not a scalar."""
        if isinstance(event, yaml.ScalarEvent):
            span, text, kind = self.between(event), event.value, self.tag(event).removeprefix(CORE)
            self.add(event, 0)
            self.anchor(event, span).node = Node(text, span, written=text)
            if kind not in ("null", "bool") or self.is_metric_key(event):
                return text, span
            fixes = (
                (Fix(span, text, f'"{text}"'),) if not event.style and re.fullmatch(r"[\w~]+", text) else ()
            )
            message = f"a key must be text; `{text}` is a {kind} in YAML 1.1"
            self.report("MC008", message, span, help="quote it", fixes=fixes)
            return text, span
        node = self.node(event, count=0)
        if node.written:
            return node.written, node.span
        self.report("MC008", "a key must be text; this is not in YAML 1.1", node.span, help="quote it")
        return None, node.span

    def is_metric_key(self, key: yaml.ScalarEvent) -> bool:
        """Returns whether a key is `on` and a text, a list, an alias or no value follows, as in `{on:
        eval.loss}`. It is a key of recipes, although YAML 1.1 reads it as a boolean."""
        value = self.loader.peek_event()
        is_text = isinstance(value, yaml.ScalarEvent) and self.tag(value) in (CORE + "str", CORE + "null")
        is_other = isinstance(value, (yaml.SequenceStartEvent, yaml.AliasEvent))
        return bool(key.value == "on" and not key.style and (is_text or is_other))

    # Spans

    def span(self, mark: Any) -> Span:
        return Span(self.text.name, mark.line + 1, mark.column + 1)

    def between(self, first: Any, last: Any = None) -> Span:
        """Returns the span from the first to the last event, cut at the end of the first line."""
        start, end = first.start_mark, (last or first).end_mark
        if isinstance(first, yaml.ScalarEvent) and first.style in ("|", ">"):
            return self.span(start)
        line = self.text.lines[start.line] if start.line < len(self.text.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        return Span(self.text.name, start.line + 1, start.column + 1, max(1, stop - start.column))


def _under(items: dict[str, Node], merged: dict[str, Node]) -> dict[str, Node]:
    """Returns the items of both mappings. The items of the mapping itself override the merged ones."""
    own = {key: over(item, merged[key]) if key in merged else item for key, item in items.items()}
    return {**merged, **own}


# Syntax errors, at the place where the user can correct them. Most are one of few mistakes: a tab, a letter
# that only looks like one of YAML, or a missing quote or bracket

FORBIDDEN = re.compile("[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that is not allowed anywhere in YAML."""

LOOKALIKES = (
    (re.compile("[\u201c\u201d\u2018\u2019\u201e]"), "use straight quotes"),
    (
        re.compile("[\uff1a\uff0c\uff5b\uff5d\uff3b\uff3d]"),
        "write `:`, `,` and brackets in ASCII, not in full width",
    ),
    (re.compile("[\u00a0\u2000-\u200b\u202f\u205f\u3000]"), "write a space"),
)
"""(characters that only look like those of YAML, help)"""
BARE_MISSING = re.compile(r"""(?<![\w"'?])\?\?\?(?![\w"'?])""")
"""An unquoted `???`."""
TRANSLATIONS: Mapping[str, str] = {
    "mapping values are not allowed": "a second `:` on one line",
    "could not find expected ':'": "a `:` is missing",
    "did not find expected key": "a key is expected here",
    "did not find expected ',' or ']'": "a `,` or `]` is missing",
    "did not find expected ',' or '}'": "a `,` or `}` is missing",
    "did not find expected '-' indicator": "a `-` is expected here",
    "did not find expected node content": "a value is missing, or must be quoted",
    "found character that cannot start any token": "a value cannot start with this character; quote it",
    "found unexpected end of stream": "a quote is not closed",
    "alphabetic or numeric character": "a text that begins with `*` or `&` must be quoted",
    "found unknown escape character": "this escape is not valid in double quotes; "
    "write \\\\ for a backslash, or use single quotes",
}
"""Message of the parser -> message of the diagnostic."""


def explain(error: yaml.YAMLError, name: str, text: str) -> Diagnostic:
    """Returns the diagnostic for a text that the parser refuses with `error`. It quotes no value, because
    values may be secrets."""
    begin = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or begin
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "this is not YAML")
    lines = text.splitlines()
    span = Span(name, mark.line + 1, mark.column + 1) if mark else Span(name, 1, 1)
    within = span if span.line <= len(lines) else Span(name, max(1, len(lines)), 1)
    causes = chain(_characters(name, text, lines, span.line), _in_line(lines, problem, within))
    return next(causes, None) or _at_end(lines, problem, within, begin)


def _wrong(message: str, span: Span, help: str = "", seconds: tuple[Span, ...] = ()) -> Diagnostic:
    return Diagnostic("MC003", message, span, seconds, help)


def _characters(name: str, text: str, lines: Sequence[str], last: int) -> Iterator[Diagnostic]:
    """Yields diagnostics about characters that YAML does not allow anywhere, about tabs in the indentation,
    and about lookalikes in the lines at which the parser stopped."""
    if found := FORBIDDEN.search(text):
        before = f"{text[: found.start()]}|".splitlines()
        help = "the file is not text; is it saved as UTF-16?" if found[0] == "\0" else "remove it"
        at = Span(name, len(before), len(before[-1]))
        yield _wrong(f"the character U+{ord(found[0]):04X} is not allowed in YAML", at, help)
    near = [(number, lines[number - 1]) for number in (last, last - 1) if 1 <= number <= len(lines)]
    for number, line in near:
        if tab := re.match(r"( *)\t", line):
            at = Span(name, number, len(tab[1]) + 1)
            yield _wrong("this line is indented with a tab; YAML requires spaces", at, "use spaces")
    for number, line in near:
        for characters, help in LOOKALIKES:
            if odd := characters.search(line.partition(" #")[0]):
                message = f"the character U+{ord(odd[0]):04X} is none that YAML reads"
                yield _wrong(message, Span(name, number, odd.start() + 1), help)


def _in_line(lines: Sequence[str], problem: str, span: Span) -> Iterator[Diagnostic]:
    """Yields diagnostics about mistakes on the line at which the parser stopped."""
    line = lines[span.line - 1] if lines else ""
    before = line[: span.column - 1]
    if "document" in problem:
        yield _wrong("a recipe must be one YAML document; a second one begins here", span, "remove the `---`")
    bare = [found.start() for found in BARE_MISSING.finditer(line)]
    if "node content" in problem and bare and bare[0] < span.column:
        at = replace(span, column=bare[0] + 1, width=3)
        fixes = (Fix(at, "???", '"???"'),) if len(bare) == 1 else ()
        yield replace(_wrong("inside brackets, YAML does not read a bare ???", at, "quote it"), fixes=fixes)
    if re.search(r"'[^']*'$", before) and re.match(r"\w", line[span.column - 1 :]):
        yield _wrong("the quote before this ends the text", span, "write `''` for a ' in single quotes")
    if "mapping values" in problem:
        help = "quote a text that has a `: ` in it"
        yield _wrong("this is not YAML: a second `:` on one line", span, help)


def _at_end(lines: Sequence[str], problem: str, span: Span, begin: yaml.Mark | None) -> Diagnostic:
    """Explains a quote or bracket that is not closed; for other problems, translates the parser's message."""
    words = next((ours for theirs, ours in TRANSLATIONS.items() if theirs in problem), problem)
    is_open = "end of stream" in problem or "' or '" in problem
    if is_open and begin is not None and begin.line < len(lines):
        bracket = Span(span.file, begin.line + 1, begin.column + 1)
        character = lines[begin.line][begin.column :][:1]
        if character in tuple("[{\"'") and bracket != span:
            here = span.with_word(f"here {words}" if "is missing" in words else "the text ends here")
            help = "close it, or quote the text that contains it"
            if re.search(r"(?<![\"'])\$\{", lines[begin.line][begin.column :]):
                help = 'write quotes around an interpolation inside brackets: "${vars.NAME}"'
            return _wrong(f"this `{character}` is not closed", bracket, help, (here,))
    is_above = "could not find" in problem or ("expected" in problem and "alphabetic" not in problem)
    help = "is a quote, a bracket or a colon missing above?" if is_above else ""
    return _wrong(f"this is not YAML: {words}", span, help)
