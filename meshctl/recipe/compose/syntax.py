"""What is no YAML, in the words of whoever wrote it: the parser says where it gave up, here is looked at what
stands there.

Most of it is one of few things: a tab, a control character, a missing quote, bracket or space, a line that is
indented below a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.tabs import spaced, tabs

Lines = Sequence[str]
NO_TEXT = re.compile("[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What YAML does not read, wherever it stands."""
BARE = re.compile(r"""(?<![\w"'?])\?\?\?(?![\w"'?])""")
"""A `???` without quotes."""
WORDS = {
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


def syntax(error: yaml.YAMLError, name: str, text: str) -> Diagnostic:
    """What to say of a text that the parser does not take."""
    if control := _control(name, text):
        return control
    lines = text.splitlines()
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "this is no YAML")
    span = Span(name, mark.line + 1, mark.column + 1) if mark else Span(name, 1, 1)
    if tab := next(tabs(name, lines, span.line), None):
        return Diagnostic(
            "MC003",
            "a tab indents this line, YAML wants spaces",
            tab,
            help="use spaces",
            fixes=spaced(name, text),
        )
    if span.line > len(lines):
        span = Span(name, max(1, len(lines)), 1)
    if "document" in problem:
        return Diagnostic(
            "MC003", "a recipe is one YAML document, here a second begins", span, help="remove the `---`"
        )
    if "alias" in problem:
        return Diagnostic("MC003", f"this alias names no anchor ({problem})", span)
    line = lines[span.line - 1] if lines else ""
    if "node content" in problem and (open := BARE.search(line)) and open.start() < span.column:
        bare = replace(span, column=open.start() + 1, width=3)
        fixes = (Fix(bare, "???", '"???"'),) if len(BARE.findall(line)) == 1 else ()
        return Diagnostic(
            "MC003", "inside brackets, YAML does not read a bare ???", bare, help="quote it", fixes=fixes
        )
    return _seen(span, line, problem) or _said(span, problem, getattr(error, "context_mark", None), lines)


def _said(span: Span, problem: str, begin: yaml.Mark | None, lines: Lines) -> Diagnostic:
    """The parser's own words, translated; and where what it did not find the end of begins."""
    words = next((said for found, said in WORDS.items() if found in problem), problem)
    opened = lines[begin.line][begin.column :][:1] if begin is not None and begin.line < len(lines) else ""
    ends = "end of stream" in problem or "' or '" in problem
    if (
        ends
        and begin is not None
        and opened
        and opened in "[{\"'"
        and (begin.line, begin.column) != (span.line - 1, span.column - 1)
    ):
        here = replace(span, width=1).with_word(
            f"here {words}" if "is missing" in words else "the text ends here"
        )
        bracket = Span(span.file, begin.line + 1, begin.column + 1)
        return Diagnostic(
            "MC003", f"this `{opened}` is not closed", bracket, (here,), "close it, or quote what is text"
        )
    help = (
        "is a quote, a bracket or a colon missing above?"
        if "could not find" in problem or "expected" in problem
        else ""
    )
    return Diagnostic("MC003", f"this is not YAML: {words}", replace(span, width=1), help=help)


def _seen(span: Span, line: str, problem: str) -> Diagnostic | None:
    """What the line shows to be wrong, where that is plain."""
    if (
        "mapping values" in problem
        and (key := re.match(r"\s+(?=[\w.@-]+\s*:)", line))
        and not re.search(r":\s", line[: span.column - 1])
    ):
        indent = replace(span, column=key.end() + 1, width=max(1, span.column - 1 - key.end()))
        return Diagnostic(
            "MC003",
            "this line is indented below a value",
            indent,
            help="indent it as the keys above it, or less",
        )
    if "mapping values" in problem:
        help = "quote a text that has a `: ` in it"
        return Diagnostic(
            "MC003", "this is not YAML: a second `:` on one line", replace(span, width=1), help=help
        )
    if ("':'" in problem or "expected" in problem) and (bare := re.search(r"[\w\"'](:)(?=[\w\"'\[{])", line)):
        at = replace(span, column=bare.start(1) + 1, width=1)
        return Diagnostic(
            "MC003", "a `:` with no space after it is not the end of a key", at, help="write `: `"
        )
    return None


def _control(name: str, text: str) -> Diagnostic | None:
    found = NO_TEXT.search(text)
    if found is None:
        return None
    before = f"{text[: found.start()]}|".splitlines()
    help = "the file is no text; is it saved as UTF-16?" if found[0] == "\0" else "remove it"
    span = Span(name, len(before), len(before[-1]))
    return Diagnostic("MC003", f"the character U+{ord(found[0]):04X} cannot stand in YAML", span, help=help)
