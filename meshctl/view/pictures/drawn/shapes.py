"""Shapes of SVG as text, and their style: what the standalone picture and the pipeline on the page are drawn
with.

    picture.text(12, 20, "rollouts", "t b")     words are classes; colours and fonts are in the style alone
    picture.chip(12, 8, component)              a letter on its colour

Names come from recipes: all text goes through `escaped`, and nothing is measured, since fonts differ: a
letter counts six tenths of its size, which no usual font exceeds on average, and what may be too long is cut
in its middle and whole in a tooltip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from meshctl.view.pictures.drawn.colours import HUES
from meshctl.view.pictures.text.styled import cut

WIDE = 0.61
"""Of a letter, in its size."""
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SIZES = {"s": 11.0, "l": 15.0, "xl": 22.0}
"""Of text, by class; 12.5 where none of them is said."""
RULES = """\
text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
.s { font-size: 11px } .l { font-size: 15px } .xl { font-size: 22px }
.mono { font-family: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.b { font-weight: 600 } .end { text-anchor: end } .mid { text-anchor: middle }
.t { fill: {ink} } .m { fill: {muted} } .w { fill: {warn} } .a { fill: {accent} }
.page { fill: {page} } .box { fill: {surface}; stroke: {line} } .lane { fill: {sunk} } .warning { fill: {warn-tint} }
.free { fill: none; stroke: {edge}; stroke-dasharray: 3 3 } .cell { fill: {sunk} } .rule { stroke: {line} }
.edge { fill: none; stroke: {edge}; stroke-width: 1.5 } .edge.weights { stroke: {accent}; stroke-dasharray: 6 4 }
.head { fill: {edge} } .head.weights { fill: {accent} }
"""


def style(colour: Callable[[str], str]) -> str:
    """The rules with colours by name filled in."""
    hues = "".join(
        f".h{n} {{ fill: {{h{n}-tint}}; stroke: {{h{n}-line}} }} .f{n} {{ fill: {{h{n}-tint}} }} .i{n} {{ fill: {{h{n}-ink}} }}\n"
        for n in range(len(HUES))
    )
    return re.sub(r"\{([a-z][a-z0-9-]*)\}", lambda found: colour(found[1]), RULES + hues)


def escaped(text: str) -> str:
    """As XML and HTML have it; characters that XML cannot say are replaced."""
    return escape(NO_XML.sub("\ufffd", text), {'"': "&quot;"})


def columns(width: float, words: str) -> int:
    """How many letters fit for sure."""
    return int(width / (WIDE * max((SIZES[word] for word in words.split() if word in SIZES), default=12.5)))


class Picture:
    """Shapes in the order in which they were drawn, and how far they reach."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = self.height = 0.0

    @property
    def markup(self) -> str:
        return "\n".join(self.parts)

    def raw(self, text: str) -> None:
        self.parts.append(text)

    def reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rect(self, x: float, y: float, width: float, height: float, words: str, round: float = 0) -> None:
        corner = f' rx="{round:g}"' if round else ""
        self.raw(f'<rect class="{words}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{corner}/>')
        self.reach(x + width, y + height)

    def text(self, x: float, y: float, text: str, words: str = "t", room: float = 0) -> None:
        """`room` is the width beyond which it is cut."""
        fits = cut(text, columns(room, words)) if room else text
        whole = f"<title>{escaped(text)}</title>" if fits != text else ""
        self.raw(f'<text class="{words}" x="{x:g}" y="{y:g}">{whole}{escaped(fits)}</text>')
        self.reach(x, y)

    def path(self, steps: Sequence[tuple[float, float]], words: str, more: str = "") -> None:
        """A line through right angles, its corners rounded, with an arrow at the end."""
        self.raw(f'<path class="edge {words}"{more} d="{_rounded(steps)}"/>')
        (from_x, _), (x, y) = steps[-2], steps[-1]
        back = -7 if x > from_x else 7
        self.raw(f'<path class="head {words}"{more} d="M{x:g} {y:g}l{back:g} -4v8z"/>')

    def chip(self, x: float, y: float, letter: str, hue: int, size: float = 18) -> float:
        """A letter on its colour; returns how wide it is."""
        width = max(size, 9 * len(letter) + 6)
        self.rect(x, y, width, size, f"h{hue % len(HUES)}", 4)
        self.text(x + width / 2, y + size / 2 + 4, letter, f"i{hue % len(HUES)} s b mid")
        return width

    def add(self, other: Picture, x: float, y: float) -> None:
        self.raw(f'<g transform="translate({x:g} {y:g})">\n{other.markup}\n</g>')
        self.reach(x + other.width, y + other.height)


def _rounded(steps: Sequence[tuple[float, float]], radius: float = 6) -> str:
    drawn = [f"M{steps[0][0]:g} {steps[0][1]:g}"]
    for before, corner, after in zip(steps, steps[1:], steps[2:], strict=False):
        near, far = _towards(corner, before, radius), _towards(corner, after, radius)
        drawn.append(f"L{near[0]:g} {near[1]:g}Q{corner[0]:g} {corner[1]:g} {far[0]:g} {far[1]:g}")
    return "".join([*drawn, f"L{steps[-1][0]:g} {steps[-1][1]:g}"])


def _towards(start: tuple[float, float], end: tuple[float, float], most: float) -> tuple[float, float]:
    """At most half of the way."""
    (x, y), (to_x, to_y) = start, end
    way = abs(to_x - x) + abs(to_y - y)
    part = min(most, way / 2) / way if way else 0
    return x + (to_x - x) * part, y + (to_y - y) * part
