"""Colours, by meaning, in light and dark: the only place that knows them.

Every text is at least 4.5 : 1 on what it stands on, every line that means something 3 : 1; a test holds that.
Eight hues for components, then again from the first: the letter tells them apart, never the colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshctl.plan.views.topology import PlacedGroup, Topology
from meshctl.view.pictures.text.letters import letters_of


@dataclass(frozen=True)
class Colour:
    light: str
    dark: str


@dataclass(frozen=True)
class Hue:
    tint: Colour
    """What a worker is filled with."""
    ink: Colour
    """Text on the tint, and on the page."""
    line: Colour
    """A border."""


COLOURS = {
    "page": Colour("#f8f7f4", "#14161a"),
    "surface": Colour("#ffffff", "#1c1f24"),
    "sunk": Colour("#f1efeb", "#24282e"),
    "line": Colour("#dedad2", "#353b44"),
    "edge": Colour("#857f74", "#7d8694"),
    "ink": Colour("#1d2127", "#e9e7e2"),
    "muted": Colour("#5a616c", "#a9b0bb"),
    "accent": Colour("#2451c4", "#9dbcff"),
    "glow": Colour("#dfe8ff", "#25345c"),
    "warn": Colour("#8a4300", "#f5bd7f"),
    "warn-tint": Colour("#fdf0df", "#3a2a14"),
}
"""`line` parts things, `edge` means something (an arrow, a free device)."""

HUES = (
    Hue(Colour("#d0e9ff", "#1b324f"), Colour("#184f90", "#a6d1ff"), Colour("#4c88d3", "#5788c7")),
    Hue(Colour("#fde1c3", "#452b09"), Colour("#784000", "#f4c48d"), Colour("#b77610", "#b07932")),
    Hue(Colour("#cdf1d8", "#143a24"), Colour("#006230", "#9ee0b4"), Colour("#349d62", "#489a68")),
    Hue(Colour("#ffdaee", "#472438"), Colour("#7b2f5f", "#f9b6db"), Colour("#bc6398", "#b56a95")),
    Hue(Colour("#c0f1f3", "#003a3e"), Colour("#00616a", "#82e0e5"), Colour("#009ca5", "#0099a0")),
    Hue(Colour("#ffdad7", "#4c2424"), Colour("#852e30", "#ffb7b3"), Colour("#c86362", "#c06a68")),
    Hue(Colour("#ebdfff", "#362a4b"), Colour("#5b3d87", "#d6c1ff"), Colour("#9372c8", "#9076be")),
    Hue(Colour("#e8eac4", "#34340a"), Colour("#555400", "#d1d38e"), Colour("#8b8c14", "#8a8c34")),
)
"""Blue, amber, green, pink, teal, red, violet, olive: the order of the terminal's colours."""


def tokens() -> dict[str, Colour]:
    """Every colour by name: `ink`, `h0-tint`, ..."""
    hues = {
        f"h{number}-{part}": getattr(hue, part)
        for number, hue in enumerate(HUES)
        for part in ("tint", "ink", "line")
    }
    return {**COLOURS, **hues}


def marks_of(topology: Topology, group: PlacedGroup) -> list[tuple[int, str, str]]:
    """The number of its colour, letter and name of each of its components; of its program, which has a small
    letter."""
    found = [
        (number, each.letter, each.name)
        for number, each in enumerate(topology.components)
        if each.group == group.name
    ]
    if found:
        return found
    number = [each.name for each in topology.groups if not each.components].index(group.name)
    return [(len(topology.components) + number, letters_of(number), group.program)]
