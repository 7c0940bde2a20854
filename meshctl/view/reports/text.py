"""A report as text for people: the smallest wrong piece with carets, what it contradicts with dashes, and
what would work.

    error[MC410]: `tp_size` 3 does not fit the 8 ranks of group `train`
      --> recipe.yaml:19:16
       |
    19 |       tp_size: 3
       |                ^ dp 2 x tp 3 = 6
       |
       = help: nearest that fit: dp 4 x tp 2; dp 2 x tp 4

Columns are counted in characters and drawn in cells of a terminal: a tab is 4, a wide letter 2, an accent 0.
A line is shown as it was written, except that control characters become `?`: a recipe must not drive the
terminal. Long lines are cut around the span.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.view.reports import Findings

WINDOW = 96
"""Characters of a line that are shown."""
MOST = 50
"""Diagnostics that are shown."""
COLOURS = {"error": "31;1", "warning": "33;1", "note": "36;1", "^": "31;1", "-": "34;1", "frame": "34;1"}
Lines = Mapping[str, Sequence[str]]
Paint = Callable[[str, str], str]


def draw(findings: Findings) -> str:
    """Each recipe's diagnostics and its summary, and where there are several recipes, a line about all."""
    parts: list[str] = []
    for one in findings.checked:
        if one.report.diagnostics:
            parts += [*([""] if parts else []), text(one.report, colour=findings.colour), ""]
        parts.append(shown(one.summary))
    if len(findings.checked) > 1:
        right = sum(one.code == 0 for one in findings.checked)
        parts += [
            "",
            f"{len(findings.checked)} recipes, {right if right < len(findings.checked) else 'all'} right",
        ]
    return "\n".join(parts) + "\n"


def text(report: Report, *, colour: bool = False) -> str:
    """All diagnostics with a blank line between; a count where there are more than a screen can use."""
    paint = _painted if colour else _plain
    lines: Lines = dict(report.sources)
    shown = ["\n".join(_diagnostic(found, lines, paint)) for found in report.diagnostics[:MOST]]
    if len(report.diagnostics) > MOST:
        shown.append(f"and {len(report.diagnostics) - MOST} more")
    return "\n\n".join(shown)


def _plain(text: str, what: str) -> str:
    return text


def _painted(text: str, what: str) -> str:
    return f"\x1b[{COLOURS[what]}m{text}\x1b[0m" if text else text


def _diagnostic(found: Diagnostic, lines: Lines, paint: Paint) -> Iterator[str]:
    spans = [span for span in (found.primary, *found.seconds) if span is not None]
    gutter = len(str(max((span.line for span in spans), default=1)))
    bar = f"{' ' * gutter} {paint('|', 'frame')}"
    yield f"{paint(f'{found.severity}[{found.code}]', found.severity)}: {shown(found.message)}"
    for span in spans:
        first = span is found.primary
        yield f"{' ' * gutter}{paint('-->' if first else ':::', 'frame')} {shown(span.file)}:{span.line}:{span.column}"
        if span.line <= len(lines.get(span.file, ())):
            yield bar
            yield from _excerpt(span, lines[span.file][span.line - 1], "^" if first else "-", gutter, paint)
    if found.help:
        if spans:
            yield bar
        yield f"{' ' * gutter} {paint('=', 'frame')} help: {shown(found.help)}"


def _excerpt(span: Span, line: str, mark: str, gutter: int, paint: Paint) -> Iterator[str]:
    """The line, and the marks below it with their word."""
    line, column = _window(line, span.column)
    before, marked = line[: column - 1], line[column - 1 : column - 1 + span.width]
    number, bar = paint(f"{span.line:>{gutter}} |", "frame"), paint(f"{'':>{gutter}} |", "frame")
    yield f"{number} {shown(line)}".rstrip()
    drawn = f"{mark * max(1, cells(marked))} {shown(span.says)}".rstrip()
    yield f"{bar} {' ' * cells(before)}{paint(drawn, mark)}"


def _window(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around a column, and where the column is in it."""
    if len(line) <= WINDOW:
        return line, column
    start = max(0, min(column - 1 - WINDOW // 3, len(line) - WINDOW))
    head, tail = "..." if start else "", "..." if start + WINDOW < len(line) else ""
    return head + line[start : start + WINDOW] + tail, column - start + len(head)


def shown(text: str) -> str:
    """What may reach a terminal."""
    return "".join(map(_cell, text))


def _cell(character: str) -> str:
    return (
        "    "
        if character == "\t"
        else "?"
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else character
    )


def cells(text: str) -> int:
    """How wide a terminal draws it."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in shown(text)
    )
