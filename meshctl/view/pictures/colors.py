"""The colors of the SVG, the page and the Mermaid flowchart, by meaning, for light and dark themes.

Text has a contrast of at least 4.5 : 1 to its background, and a line with a meaning 3 : 1. Components cycle
through eight hues, so their letters, and never the color alone, tell them apart.
"""

from __future__ import annotations

from meshctl.dataclass import dataclass


@dataclass(frozen=True)
class Color:
    light: str
    dark: str


@dataclass(frozen=True)
class Hue:
    tint: Color
    """The background of a worker."""
    text: Color
    """Text on the tint, and on the page."""
    line: Color
    """A border."""


COLORS = {
    "page": Color("#f8f7f4", "#14161a"),
    "surface": Color("#ffffff", "#1c1f24"),
    "sunk": Color("#f1efeb", "#24282e"),
    "line": Color("#dedad2", "#353b44"),
    "edge": Color("#857f74", "#7d8694"),
    "text": Color("#1d2127", "#e9e7e2"),
    "muted": Color("#5a616c", "#a9b0bb"),
    "accent": Color("#2451c4", "#9dbcff"),
    "glow": Color("#dfe8ff", "#25345c"),
    "warn": Color("#8a4300", "#f5bd7f"),
    "warn-tint": Color("#fdf0df", "#3a2a14"),
}
"""`line` separates areas; `edge` has a meaning (an arrow, a free device)."""

HUES = (
    Hue(Color("#d0e9ff", "#1b324f"), Color("#184f90", "#a6d1ff"), Color("#4c88d3", "#5788c7")),
    Hue(Color("#fde1c3", "#452b09"), Color("#784000", "#f4c48d"), Color("#b77610", "#b07932")),
    Hue(Color("#cdf1d8", "#143a24"), Color("#006230", "#9ee0b4"), Color("#349d62", "#489a68")),
    Hue(Color("#ffdaee", "#472438"), Color("#7b2f5f", "#f9b6db"), Color("#bc6398", "#b56a95")),
    Hue(Color("#c0f1f3", "#003a3e"), Color("#00616a", "#82e0e5"), Color("#009ca5", "#0099a0")),
    Hue(Color("#ffdad7", "#4c2424"), Color("#852e30", "#ffb7b3"), Color("#c86362", "#c06a68")),
    Hue(Color("#ebdfff", "#362a4b"), Color("#5b3d87", "#d6c1ff"), Color("#9372c8", "#9076be")),
    Hue(Color("#e8eac4", "#34340a"), Color("#555400", "#d1d38e"), Color("#8b8c14", "#8a8c34")),
)
"""Blue, amber, green, pink, teal, red, violet, olive: the order of `text.styled.PALETTE`."""


def tokens() -> dict[str, Color]:
    """Returns every color by name: `text`, `h0-tint`, ..."""
    hues = {
        f"h{number}-{part}": getattr(hue, part)
        for number, hue in enumerate(HUES)
        for part in ("tint", "text", "line")
    }
    return {**COLORS, **hues}


def properties() -> str:
    """Returns the colors as properties of a page, which follow its theme: `--text: light-dark(...); ...`."""
    return "".join(f"--{name}: light-dark({one.light}, {one.dark}); " for name, one in tokens().items())
