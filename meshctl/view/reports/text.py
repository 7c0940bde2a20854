"""A report as text: the smallest wrong piece is marked with carets, the places that it contradicts with
dashes, and the help has the nearest correction.

    error[MC410]: `tp_size` 3 does not fit the 8 ranks of group `train`
      --> recipe.yaml:19:16
       |
    19 |       tp_size: 3
       |                ^ dp 2 x tp 3 = 6
       |
       = help: nearest that fit: dp 4 x tp 2; dp 2 x tp 4

Columns are counted in characters and drawn in cells of a terminal: a tab has 4, a wide letter 2, an accent 0.
Control characters become `?`, so that a recipe cannot control the terminal. Long lines are cut around the
span.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence

from meshctl.diagnostics import Diagnostic, Report
from meshctl.view.reports import Findings

MAX_LINE = 96
"""Maximum number of characters that are shown of a line of the recipe."""
MAX_SHOWN = 50
"""Maximum number of diagnostics that are shown for a recipe."""
COLORS = {"error": "31;1", "warning": "33;1", "note": "36;1", "^": "31;1", "-": "34;1", "frame": "34;1"}
Lines = Mapping[str, Sequence[str]]
Paint = Callable[[str, str], str]


def draw(findings: Findings) -> str:
    """Returns the diagnostics and summary of each recipe, and a line about all of them if there are
    several."""
    parts: list[str] = []
    for one in findings.checked:
        if one.report.diagnostics:
            parts += [*([""] if parts else []), text(one.report, color=findings.color), ""]
        parts.append(shown(one.summary))
    if len(findings.checked) > 1:
        right = sum(one.code == 0 for one in findings.checked)
        parts += [
            "",
            f"{len(findings.checked)} recipes, {right if right < len(findings.checked) else 'all'} right",
        ]
    return "\n".join(parts) + "\n"


def text(report: Report, *, color: bool = False) -> str:
    """Returns at most `MAX_SHOWN` diagnostics, separated by blank lines, and the number of others."""

    def paint(text: str, what: str) -> str:
        return f"\x1b[{COLORS[what]}m{text}\x1b[0m" if color and text else text

    lines: Lines = dict(report.sources)
    shown = ["\n".join(_diagnostic(found, lines, paint)) for found in report.diagnostics[:MAX_SHOWN]]
    if len(report.diagnostics) > MAX_SHOWN:
        shown.append(f"and {len(report.diagnostics) - MAX_SHOWN} more")
    return "\n\n".join(shown)


def _diagnostic(found: Diagnostic, lines: Lines, paint: Paint) -> Iterator[str]:
    spans = [span for span in (found.primary, *found.seconds) if span is not None]
    gutter = len(str(max((span.line for span in spans), default=1)))
    bar = f"{' ' * gutter} {paint('|', 'frame')}"
    yield f"{paint(f'{found.severity}[{found.code}]', found.severity)}: {shown(found.message)}"
    for span in spans:
        first = span is found.primary
        yield (
            f"{' ' * gutter}{paint('-->' if first else ':::', 'frame')} "
            f"{shown(span.file)}:{span.line}:{span.column}"
        )
        if span.line <= len(lines.get(span.file, ())):
            yield bar
            mark = "^" if first else "-"
            line, column = _window(lines[span.file][span.line - 1], span.column)
            before, marked = line[: column - 1], line[column - 1 : column - 1 + span.width]
            yield f"{paint(f'{span.line:>{gutter}} |', 'frame')} {shown(line)}".rstrip()
            drawn = f"{mark * max(1, cells(marked))} {shown(span.label)}".rstrip()
            empty = paint(" " * gutter + " |", "frame")
            yield f"{empty} {' ' * cells(before)}{paint(drawn, mark)}"
    if found.help:
        if spans:
            yield bar
        yield f"{' ' * gutter} {paint('=', 'frame')} help: {shown(found.help)}"


def _window(line: str, column: int) -> tuple[str, int]:
    if len(line) <= MAX_LINE:
        return line, column
    start = max(0, min(column - 1 - MAX_LINE // 3, len(line) - MAX_LINE))
    head, tail = "..." if start else "", "..." if start + MAX_LINE < len(line) else ""
    return head + line[start : start + MAX_LINE] + tail, column - start + len(head)


def shown(text: str) -> str:
    """Returns the text with `?` for each character that controls a terminal, and four spaces for a tab."""
    return text if text.isprintable() else "".join(map(_cell, text))


def _cell(character: str) -> str:
    if character == "\t":
        return "    "
    return "?" if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") else character


def cells(text: str) -> int:
    """Returns the number of cells of a text in a terminal."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(_width, shown(text)))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
