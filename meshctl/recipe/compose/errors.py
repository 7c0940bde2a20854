"""Explains YAML syntax errors, at the place where the user can correct them.

explain           returns the diagnostic for a text that the parser refuses. Most are one of few mistakes:
                  a tab, a control character, a missing quote, bracket or space, or wrong indentation
spaces_for_tabs   returns the edits that replace tabs in the indentation
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_repairs import find_repair

# Syntax

FORBIDDEN = re.compile("[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that is not allowed anywhere in YAML."""
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
    """Returns the diagnostic for a text that the parser refuses with `error`."""
    begin = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or begin
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "this is not YAML")
    lines = text.splitlines()
    span = Span(name, mark.line + 1, mark.column + 1) if mark else Span(name, 1, 1)
    repairs = find_repair(name, text, span.line)
    causes = chain(_in_text(name, text, span), repairs, _in_line(lines, problem, _within(lines, span)))
    return next(causes, None) or _at_end(lines, problem, _within(lines, span), begin)


def _wrong(message: str, span: Span, help: str = "", seconds: tuple[Span, ...] = ()) -> Diagnostic:
    return Diagnostic("MC003", message, span, seconds, help)


def _within(lines: Sequence[str], span: Span) -> Span:
    """Returns the span, or a span on the last line if `span` lies after it."""
    return span if span.line <= len(lines) else Span(span.file, max(1, len(lines)), 1)


def _in_text(name: str, text: str, span: Span) -> Iterator[Diagnostic]:
    """Yields diagnostics about characters that are not allowed, wherever the parser stopped."""
    if found := FORBIDDEN.search(text):
        before = f"{text[: found.start()]}|".splitlines()
        help = "the file is not text; is it saved as UTF-16?" if found[0] == "\0" else "remove it"
        at = Span(name, len(before), len(before[-1]))
        yield _wrong(f"the character U+{ord(found[0]):04X} is not allowed in YAML", at, help)
    for tab in _tabs(name, text.splitlines(), span.line):
        wrong = _wrong("this line is indented with a tab; YAML requires spaces", tab, "use spaces")
        yield replace(wrong, fixes=spaces_for_tabs(name, text))


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
        indent = re.match(r"\s+(?=[\w.@-]+\s*:)", line)
        if indent and not re.search(r":\s", before):
            at = replace(span, column=indent.end() + 1, width=max(1, len(before) - indent.end()))
            help = "indent it as the keys above it, or less"
            yield _wrong("this line is indented below a value", at, help)
        help = "quote a text that has a `: ` in it"
        yield _wrong("this is not YAML: a second `:` on one line", span, help)
    colon = re.search(r"[\w\"'](:)(?=[\w\"'\[{])", line)
    if colon and ("':'" in problem or "expected" in problem):
        at = replace(span, column=colon.start(1) + 1)
        yield _wrong("a `:` with no space after it is not the end of a key", at, "write `: ` with a space")


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


# Tabs

TAB_WIDTHS = (2, 4, 8)
MAX_TEXT_LENGTH = 1 << 15
MAX_TAB_LINES = 100
"""Edits are proposed only for texts up to this length and with up to this many lines that begin with tabs."""
Events = list[tuple[object, ...]]


def spaces_for_tabs(name: str, text: str) -> tuple[Fix, ...]:
    """Returns the edits that replace tabs that make a text invalid.

    The width of a tab depends on the editor. Edits are returned only if all widths with which the text is
    valid give the same values.
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
    """Yields the spans of tabs in the indentation of the line at which the parser stopped, and of the line
    before."""
    for number in (line, line - 1):
        if 1 <= number <= len(lines) and (found := re.match(r"( *)\t", lines[number - 1])):
            yield Span(name, number, len(found[1]) + 1)


def _read_with_tabs(name: str, text: str, width: int) -> tuple[tuple[Fix, ...], Events] | None:
    """Returns (edits for tabs of this width, content after the edits), or None if the result is not valid
    YAML."""
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
