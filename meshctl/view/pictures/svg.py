"""The text picture as one SVG file, for a README, a ticket or a slide.

The file is complete in itself: it follows the light or dark theme of its viewer and needs no particular font.
Each piece of text has a fixed position and length, so columns and boxes stay aligned in any monospaced font.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from xml.sax.saxutils import escape

from meshctl.plan.views.topology import Topology
from meshctl.text.bounded import UNSEEN
from meshctl.view.pictures.colors import HUES, tokens
from meshctl.view.pictures.text.picture import pictured
from meshctl.view.pictures.text.styled import PALETTE, Line, width_of

WIDTH, LINES = 100, 160
"""Columns and lines of the text picture, at most."""
COLUMN_PX, LINE_PX, MARGIN_PX = 8.4, 16.3, 20
"""With text of 14 px, borders of neighbouring lines touch at this height."""
BASELINE_PX = 12.5
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
RULES = """\
text { font: 14px "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", ui-monospace, monospace; fill: {text} }
.bold { font-weight: 700 } .faint { fill: {muted} } .warning { fill: {warn}; font-weight: 700 } .page { fill: {page} }
"""  # noqa: E501


def draw(topology: Topology) -> str:
    """Returns the whole picture as an SVG document."""
    light = _style(lambda name: tokens()[name].light)
    dark = _style(lambda name: tokens()[name].dark)
    style = f"<style>\n{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n</style>\n"
    return document(topology, style)


def inline_style(scope: str) -> str:
    """Returns the rules of a picture in a page, for what a selector contains. The page defines the colors as
    variables."""
    rules = _style(lambda name: f"var(--{name})")
    return re.sub(r"(^|, |\} ?)(?=[.t])", rf"\1{scope} ", rules, flags=re.MULTILINE)


def document(topology: Topology, style: str = "") -> str:
    """Returns the picture with its style; without one, for a page that has the rules of `inline_style`."""
    drawn = pictured(topology, WIDTH, LINES)
    width = COLUMN_PX * max(each.width for each in drawn) + 2 * MARGIN_PX
    height = LINE_PX * len(drawn) + 2 * MARGIN_PX
    size = f'width="{width:g}" height="{height:g}"'
    body = "\n".join(part for number, each in enumerate(drawn) for part in _markup(each, number))
    facts = drawn[0].text
    attributes = f'{size} viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="t d"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {attributes}>
<title id="t">{escaped(topology.name)}</title>
<desc id="d">{escaped(f"Placement, groups and pipeline of {facts}")}</desc>
{style}<rect class="page" {size} rx="8"/>
{body}
</svg>
"""


def escaped(text: str) -> str:
    """Returns text for XML and HTML; characters that XML refuses, or that do not show, are replaced."""
    return escape(NO_XML.sub("\ufffd", UNSEEN.sub("\ufffd", text)), {'"': "&quot;"})


def _style(color: Callable[[str], str]) -> str:
    """Returns the style rules with the colors of one theme; `C0` is the letter of a component, `c0` its
    name."""
    hues = "".join(
        f".c{n}, .C{n} {{ fill: {{h{n % len(HUES)}-text}} }} .C{n} {{ font-weight: 700 }} "
        f".T{n} {{ fill: {{h{n % len(HUES)}-tint}} }}\n"
        for n in range(len(PALETTE))
    )
    return re.sub(r"\{([a-z][a-z0-9-]*)\}", lambda found: color(found[1]), RULES + hues)


def _markup(drawn: Line, number: int) -> Iterator[str]:
    """Yields the shapes of one line: runs of text without wide gaps, and the backgrounds of letters."""
    column, top = 0, MARGIN_PX + number * LINE_PX
    for part in drawn:
        for run in re.finditer(r"\S+(?: \S+)*", part.text):
            x = MARGIN_PX + COLUMN_PX * (column + width_of(part.text[: run.start()]))
            width = COLUMN_PX * width_of(run[0])
            if part.style.startswith("C"):
                shape = f'x="{x - 1:g}" y="{top + 1:g}" width="{width + 2:g}" height="{LINE_PX - 2:g}" rx="3"'
                yield f'<rect class="T{part.style[1:]}" {shape}/>'
            style = f' class="{part.style}"' if part.style else ""
            position = f'x="{x:g}" y="{top + BASELINE_PX:g}" textLength="{width:g}"'
            yield f'<text{style} {position} lengthAdjust="spacingAndGlyphs">{escaped(run[0])}</text>'
        column += width_of(part.text)
