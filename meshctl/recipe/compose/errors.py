"""Explains YAML that cannot be read: what is wrong, at the place where the user can mend it.

exceeded_limit    a text that is nested too deep or unfolds to too many values, found before it is built
explain           a text that the parser refuses; most are one of few mistakes: a tab, a control character,
                  a missing quote, bracket or space, a line that is indented below a value
spaces_for_tabs   the edits that replace tabs in indentation
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span

# Limits

MAX_NODES = 20_000
MAX_DEPTH = 64


@dataclass
class _Open:
    """A mapping or list whose end has not been reached."""

    anchor: str | None
    count_before: int
    is_mapping: bool
    height: int = 1
    is_at_key: bool = False

    def next_weight(self) -> int:
        """Returns what the next item counts: 0 for a mapping's key, otherwise 1."""
        self.is_at_key = self.is_mapping and not self.is_at_key
        return 0 if self.is_at_key else 1


def exceeded_limit(loader: Any) -> tuple[str, Any] | None:
    """Returns which limit a text exceeds and the mark where it does, or None if the text can be built.

    The parser's events are counted, and an alias counts as much as its anchor holds, so an alias bomb costs no
    more than its first values. Raises yaml's errors.
    """
    count = 0
    open = list[_Open]()
    anchors = dict[str | None, tuple[int, int]]()
    """Anchor -> (count, height) of what it names."""
    while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
        height = 0
        if isinstance(event, yaml.CollectionStartEvent):
            count += open[-1].next_weight() if open else 1
            open.append(_Open(event.anchor, count, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.AliasEvent):
            values, height = anchors.get(event.anchor, (1, 0))
            count += values - 1 + (open[-1].next_weight() if open else 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchors[event.anchor] = 1, 0
            count += open[-1].next_weight() if open else 1
        elif isinstance(event, yaml.CollectionEndEvent):
            last = open.pop()
            height = last.height
            anchors[last.anchor] = 1 + count - last.count_before, height
        else:
            continue
        if open and height:
            open[-1].height = max(open[-1].height, 1 + height)
        if len(open) + height > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels", event.start_mark
        if count > MAX_NODES:
            return f"unfolds to more than {MAX_NODES:,} values", event.start_mark
    return None


def alias_within(loader: Any, start: int, stop: int) -> tuple[Any, Any] | None:
    """Returns the marks around the alias that refers to the collection at characters `start` to `stop` from
    inside it."""
    anchor = None
    while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
        mark: Any = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent) and mark.index == start:
            anchor = event.anchor
        elif isinstance(event, yaml.AliasEvent) and event.anchor == anchor and start < mark.index < stop:
            return mark, event.end_mark
    return None


# Syntax

FORBIDDEN = re.compile("[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that YAML does not read, wherever it is."""
BARE_MISSING = re.compile(r"""(?<![\w"'?])\?\?\?(?![\w"'?])""")
"""A `???` without quotes."""
TRANSLATIONS: Mapping[str, str] = {
    "mapping values are not allowed": "a second `:` on one line",
    "could not find expected ':'": "a `:` is missing",
    "did not find expected key": "a key is expected here",
    "did not find expected ',' or ']'": "a `,` or `]` is missing",
    "did not find expected ',' or '}'": "a `,` or `}` is missing",
    "did not find expected '-' indicator": "a `-` is expected here",
    "did not find expected node content": "a value is missing, or must be quoted",
    "found character that cannot start any token": "no value can start with this character, quote it",
    "found unexpected end of stream": "a quote is not closed",
    "found unknown escape character": "there is no such escape in double quotes: write \\\\ for a backslash, or use single quotes",
}
"""The parser's words -> ours."""


@dataclass(frozen=True)
class _Refusal:
    """A text that the parser refuses, and where."""

    name: str
    text: str
    problem: str
    span: Span
    begin: yaml.Mark | None
    """Where the construct begins that the parser was reading."""

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def line(self) -> str:
        return self.lines[self.span.line - 1] if self.lines else ""

    def diagnostic(self, message: str, span: Span, help: str = "", **more: Any) -> Diagnostic:
        return Diagnostic("MC003", message, span, help=help, **more)


def explain(error: yaml.YAMLError, name: str, text: str) -> Diagnostic:
    """Returns the diagnostic for a text that the parser refuses with `error`."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "this is no YAML")
    span = Span(name, mark.line + 1, mark.column + 1) if mark else Span(name, 1, 1)
    refusal = _Refusal(name, text, problem, span, getattr(error, "context_mark", None))
    if found := _control_character(refusal) or _tab(refusal):
        return found
    if span.line > len(refusal.lines):
        refusal = replace(refusal, span=Span(name, max(1, len(refusal.lines)), 1))
    for cause in (_second_document, _unknown_alias, _bare_missing, _indented_below_value, _second_colon):
        if found := cause(refusal):
            return found
    return _no_space_after_colon(refusal) or _not_closed(refusal) or _translated(refusal)


def _control_character(refusal: _Refusal) -> Diagnostic | None:
    found = FORBIDDEN.search(refusal.text)
    if found is None:
        return None
    before = f"{refusal.text[: found.start()]}|".splitlines()
    help = "the file is no text; is it saved as UTF-16?" if found[0] == "\0" else "remove it"
    span = Span(refusal.name, len(before), len(before[-1]))
    return refusal.diagnostic(f"the character U+{ord(found[0]):04X} cannot stand in YAML", span, help)


def _tab(refusal: _Refusal) -> Diagnostic | None:
    tab = next(_tabs(refusal.name, refusal.lines, refusal.span.line), None)
    if tab is None:
        return None
    fixes = spaces_for_tabs(refusal.name, refusal.text)
    return refusal.diagnostic("a tab indents this line, YAML wants spaces", tab, "use spaces", fixes=fixes)


def _second_document(refusal: _Refusal) -> Diagnostic | None:
    if "document" not in refusal.problem:
        return None
    message = "a recipe is one YAML document, here a second begins"
    return refusal.diagnostic(message, refusal.span, "remove the `---`")


def _unknown_alias(refusal: _Refusal) -> Diagnostic | None:
    if "alias" not in refusal.problem:
        return None
    return refusal.diagnostic(f"this alias names no anchor ({refusal.problem})", refusal.span)


def _bare_missing(refusal: _Refusal) -> Diagnostic | None:
    found = BARE_MISSING.findall(refusal.line)
    first = BARE_MISSING.search(refusal.line)
    if "node content" not in refusal.problem or first is None or first.start() >= refusal.span.column:
        return None
    span = replace(refusal.span, column=first.start() + 1, width=3)
    fixes = (Fix(span, "???", '"???"'),) if len(found) == 1 else ()
    return refusal.diagnostic("inside brackets, YAML does not read a bare ???", span, "quote it", fixes=fixes)


def _indented_below_value(refusal: _Refusal) -> Diagnostic | None:
    indent = re.match(r"\s+(?=[\w.@-]+\s*:)", refusal.line)
    before = refusal.line[: refusal.span.column - 1]
    if "mapping values" not in refusal.problem or not indent or re.search(r":\s", before):
        return None
    width = max(1, len(before) - indent.end())
    span = replace(refusal.span, column=indent.end() + 1, width=width)
    message, help = "this line is indented below a value", "indent it as the keys above it, or less"
    return refusal.diagnostic(message, span, help)


def _second_colon(refusal: _Refusal) -> Diagnostic | None:
    if "mapping values" not in refusal.problem:
        return None
    message, help = "this is not YAML: a second `:` on one line", "quote a text that has a `: ` in it"
    return refusal.diagnostic(message, refusal.span, help)


def _no_space_after_colon(refusal: _Refusal) -> Diagnostic | None:
    found = re.search(r"[\w\"'](:)(?=[\w\"'\[{])", refusal.line)
    if found is None or not ("':'" in refusal.problem or "expected" in refusal.problem):
        return None
    span = replace(refusal.span, column=found.start(1) + 1)
    return refusal.diagnostic("a `:` with no space after it is not the end of a key", span, "write `: `")


def _not_closed(refusal: _Refusal) -> Diagnostic | None:
    """Explains a quote or bracket without an end; the parser marks where it has given up looking for it."""
    begin, lines = refusal.begin, refusal.lines
    if begin is None or begin.line >= len(lines):
        return None
    bracket = Span(refusal.name, begin.line + 1, begin.column + 1)
    opened = lines[begin.line][begin.column :][:1]
    is_end = "end of stream" in refusal.problem or "' or '" in refusal.problem
    if not is_end or opened not in tuple("[{\"'") or bracket == refusal.span:
        return None
    words = _words(refusal.problem)
    here = f"here {words}" if "is missing" in words else "the text ends here"
    help, seconds = "close it, or quote what is text", (refusal.span.with_word(here),)
    return refusal.diagnostic(f"this `{opened}` is not closed", bracket, help, seconds=seconds)


def _translated(refusal: _Refusal) -> Diagnostic:
    is_above = "could not find" in refusal.problem or "expected" in refusal.problem
    help = "is a quote, a bracket or a colon missing above?" if is_above else ""
    return refusal.diagnostic(f"this is not YAML: {_words(refusal.problem)}", refusal.span, help)


def _words(problem: str) -> str:
    return next((ours for theirs, ours in TRANSLATIONS.items() if theirs in problem), problem)


# Tabs

TAB_WIDTHS = (2, 4, 8)
MAX_TEXT_LENGTH = 1 << 15
MAX_TAB_LINES = 100
"""No edits are proposed for a longer text, or for one with more lines that begin with tabs."""
Events = list[tuple[object, ...]]


def spaces_for_tabs(name: str, text: str) -> tuple[Fix, ...]:
    """Returns edits that replace the tabs that make a text unreadable.

    The width of a tab depends on the editor, so there are edits only if every width that makes the text
    readable gives the same values.
    """
    if len(text) > MAX_TEXT_LENGTH:
        return ()
    readings = {width: found for width in TAB_WIDTHS if (found := _read_with_tabs(name, text, width))}
    values = [events for _, events in readings.values()]
    if not readings or any(events != values[0] for events in values):
        return ()
    indents = [len(spaces) for spaces in re.findall(r"^( +)[^\s#]", text, re.MULTILINE)]
    width = min(indents, default=0)
    fixes, _ = readings[width if width in readings else min(readings)]
    return fixes


def _tabs(name: str, lines: Sequence[str], line: int) -> Iterator[Span]:
    """Yields tabs in the indentation of the line where the parser gave up, and of the line before."""
    for number in (line, line - 1):
        if 1 <= number <= len(lines) and (found := re.match(r"( *)\t", lines[number - 1])):
            yield Span(name, number, len(found[1]) + 1)


def _read_with_tabs(name: str, text: str, width: int) -> tuple[tuple[Fix, ...], Events] | None:
    """Returns the edits for tabs of this width and what is read after them, or None if that is no YAML."""
    lines, fixes = text.splitlines(keepends=True), list[Fix]()
    while len(fixes) < MAX_TAB_LINES:
        try:
            events = yaml.parse("".join(lines), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            return tuple(fixes), [_content(event) for event in events]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            tab = next(_tabs(name, lines, mark.line + 1), None) if mark else None
        if tab is None:
            return None
        line = lines[tab.line - 1]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        spaces = indent.expandtabs(width)
        fixes.append(Fix(Span(name, tab.line, 1, len(indent)), indent, spaces))
        lines[tab.line - 1] = spaces + line[len(indent) :]
    return None


def _content(event: yaml.Event) -> tuple[object, ...]:
    return (type(event), *(getattr(event, name, None) for name in ("anchor", "tag", "value")))
