"""Fits a picture into a number of lines: of each section, the most detailed level is chosen that fits
together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from meshctl.view.pictures.text.styled import Line, ink, line

NOT_SPACED_COST, NO_LEGEND_COST = 12, 6
"""Of a picture without empty lines between the sections, and of one without a legend."""


@dataclass(frozen=True)
class Level:
    """One level of detail of a section."""

    cost: int
    """The value of the details that this level leaves out."""
    draw: Callable[[], list[Line]]
    least: int = 0
    """A lower bound of its lines, so that a level that cannot fit need not be drawn."""


@dataclass(frozen=True)
class Section:
    heading: str
    levels: tuple[Level, ...]
    """From the most detailed to the shortest."""
    more: Callable[[int], str]
    """Returns the last line, given the number of lines that are left out."""


def fitted(head: Line, sections: Sequence[Section], foot: Sequence[Line], lines: int) -> list[Line]:
    """Returns head, sections and foot in at most `lines` lines.

    Of all combinations of levels that fit, the one with the least cost is chosen. If not even the shortest
    levels fit, the sections share the lines evenly, and short sections leave theirs to the others.
    """
    room = lines - 1 - len(sections)
    drawn = Drawn(sections, room)
    choices = [range(len(section.levels)) for section in sections]
    for spaced, footed, *levels in sorted(
        product((1, 0), (1, 0), *choices), key=lambda choice: _cost(sections, choice)
    ):
        gaps = spaced * (len(sections) + footed * bool(foot))
        if (
            sum(len(drawn[place, level]) for place, level in enumerate(levels)) + gaps + len(foot) * footed
            <= room
        ):
            bodies = [drawn[place, level] for place, level in enumerate(levels)]
            return _joined(head, sections, bodies, foot if footed else (), bool(spaced))
    return _joined(head, sections, _cut(sections, drawn, room), (), False)[:lines]


def _cost(sections: Sequence[Section], choice: Sequence[int]) -> int:
    spaced, footed, *levels = choice
    return (
        NOT_SPACED_COST * (1 - spaced)
        + NO_LEGEND_COST * (1 - footed)
        + sum(section.levels[level].cost for section, level in zip(sections, levels, strict=True))
    )


def _cut(sections: Sequence[Section], drawn: Drawn, room: int) -> list[Sequence[Line]]:
    """Returns each section at the most detailed level that fits into its share, shortened if necessary."""
    bodies = [
        [drawn[place, level] for level in range(len(section.levels))]
        for place, section in enumerate(sections)
    ]
    rooms = shares(
        [len(each[-1]) if len(each[-1]) > room // len(sections) else len(each[0]) for each in bodies], room
    )
    chosen = [
        next((body for body in each if len(body) <= most), each[-1])
        for each, most in zip(bodies, rooms, strict=True)
    ]
    rooms = shares([len(body) for body in chosen], room)
    return [
        shortened(body, most, section.more)
        for body, most, section in zip(chosen, rooms, sections, strict=True)
    ]


class Drawn(dict[tuple[int, int], Sequence[Line]]):
    """(section, level) -> its lines, drawn on first use. A level that cannot fit is not drawn and has empty
    lines."""

    def __init__(self, sections: Sequence[Section], room: int) -> None:
        self._sections, self._room = sections, room

    def __missing__(self, key: tuple[int, int]) -> Sequence[Line]:
        level = self._sections[key[0]].levels[key[1]]
        self[key] = level.draw() if level.least <= self._room else [()] * level.least
        return self[key]


def _joined(
    head: Line,
    sections: Sequence[Section],
    bodies: Sequence[Sequence[Line]],
    foot: Sequence[Line],
    spaced: bool,
) -> list[Line]:
    gap = [line()] if spaced else []
    made = [head]
    for section, body in zip(sections, bodies, strict=True):
        made += [*gap, line(ink(section.heading, "bold")), *body]
    return [*made, *(gap if foot else []), *foot]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Splits `room`: each gets what it wants, or an even share of what the others leave."""
    rooms, left = [0] * len(wanted), max(0, room)
    for place, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        rooms[index] = min(wanted[index], left // (len(wanted) - place))
        left -= rooms[index]
    return rooms


def shortened(body: Sequence[Line], room: int, more: Callable[[int], str]) -> Sequence[Line]:
    if len(body) <= room:
        return body
    kept = max(0, room - 1)
    return [*body[:kept], line("  ", ink(more(len(body) - kept), "faint"))][:room]
