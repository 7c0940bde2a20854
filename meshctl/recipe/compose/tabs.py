"""Tabs that indent lines, which YAML refuses: which line it is, and what spaces would say in their place,
where that is certain.

How wide a tab is depends on who looks. Only where every width that can be read at all gives the same values
is there a fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import yaml

from meshctl.diagnostics import Fix, Span

WIDTHS = (2, 4, 8)
MAX_LENGTH = 1 << 15
MAX_LINES = 100
"""Of a longer text, or one with more such lines, nothing is proposed."""
Shape = list[tuple[object, ...]]


def tabs(name: str, lines: Sequence[str], line: int) -> Iterator[Span]:
    """A tab in the indentation of the line where the parser gave up, or of the one before."""
    for number in (line, line - 1):
        if 1 <= number <= len(lines) and (found := re.match(r"( *)\t", lines[number - 1])):
            yield Span(name, number, len(found[1]) + 1)


def spaced(name: str, text: str) -> tuple[Fix, ...]:
    """The edits of all lines that a tab makes unreadable."""
    if len(text) > MAX_LENGTH:
        return ()
    found = {width: read for width in WIDTHS if (read := _read(name, text, width))}
    if not found or any(shape != next(iter(found.values()))[1] for _, shape in found.values()):
        return ()
    indents = [len(spaces) for spaces in re.findall(r"^( +)[^\s#]", text, re.MULTILINE)]
    return found[min(indents) if indents and min(indents) in found else min(found)][0]


def _read(name: str, text: str, width: int) -> tuple[tuple[Fix, ...], Shape] | None:
    """What is read where a tab is so wide, and the edits that make it so; none where it is not YAML even
    then."""
    lines, fixes = text.splitlines(keepends=True), list[Fix]()
    while len(fixes) < MAX_LINES:
        try:
            return tuple(fixes), [
                _said(event)
                for event in yaml.parse("".join(lines), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            ]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            tab = next(tabs(name, lines, mark.line + 1), None) if mark else None
        if tab is None:
            return None
        indent = re.match(r"[ \t]*", lines[tab.line - 1])
        assert indent is not None
        spaces = indent[0].expandtabs(width)
        fixes.append(Fix(Span(name, tab.line, 1, len(indent[0])), indent[0], spaces))
        lines[tab.line - 1] = spaces + lines[tab.line - 1][indent.end() :]
    return None


def _said(event: yaml.Event) -> tuple[object, ...]:
    return (
        type(event),
        getattr(event, "anchor", None),
        getattr(event, "tag", None),
        getattr(event, "value", None),
    )
