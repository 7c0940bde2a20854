"""Explains YAML syntax errors, at the place where the user can correct them. Most are one of few mistakes: a
tab, a character that only looks like one of YAML, or a missing quote or bracket."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import yaml

from meshctl.diagnostics import Diagnostic, Fix, Span

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
